//! The settings of metrics over OTLP (`plugin_attr.prometheus.otlp`); [`crate::metrics::push`] pushes them.

use std::time::Duration;

use model::boot::Boot;
use plugins::collector::Own;
use sdk::otlp::Signal;
use sdk::sink::{Batching, Spec};
use serde_json::Value;

const AT: &str = "/plugin_attr/prometheus";

/// The shortest interval.
const SHORTEST: Duration = Duration::from_millis(100);

/// The settings.
#[derive(Debug)]
pub struct Settings {
    own: Own,
    opentelemetry: Value,
    pub every: Duration,
}

impl Settings {
    /// Reads the settings; `None` if metrics are not pushed.
    ///
    /// # Errors
    /// An address that is not valid, or a header that cannot be sent.
    pub fn read(boot: &Boot) -> anyhow::Result<Option<Settings>> {
        let attr = boot.attr(AT);
        if !attr.bool("/otlp/enable") {
            return Ok(None);
        }
        let members = |pointer: &str| attr.get(pointer).and_then(Value::as_object).cloned();
        let settings = Settings {
            own: Own {
                endpoint: attr.text("/otlp/endpoint").map(str::to_owned),
                grpc: attr.text("/otlp/protocol").map(|protocol| protocol == "grpc"),
                headers: members("/otlp/headers"),
                timeout: attr.get("/otlp/timeout").map(|_| millis(attr.time("/otlp/timeout"))),
                verify: attr.bool("/otlp/ssl_verify"),
                resource: members("/otlp/resource"),
                pointers: ["/endpoint", "/headers"],
            },
            opentelemetry: boot.plugin_attr.get("opentelemetry").cloned().unwrap_or_default(),
            every: attr.time("/otlp/interval").max(SHORTEST),
        };
        settings.spec(None)?;
        Ok(Some(settings))
    }

    /// The sink, for an instance with this id. Sums of two processes, which an upgrade has for a while, differ in
    /// `process.pid`.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn spec(&self, instance: Option<&Value>) -> anyhow::Result<Spec> {
        let mut collector = self.own.clone().with(&self.opentelemetry);
        if let Some(instance) = instance {
            let id = collector.resource.entry("service.instance.id");
            id.or_insert_with(|| instance.clone());
            collector.resource.entry("process.pid").or_insert_with(|| std::process::id().into());
        }
        let target = collector.destination(Signal::Metrics);
        let target = target.map_err(|invalid| invalid.said("plugin_attr.prometheus.otlp in config.yaml: "));
        Ok(Spec {
            plugin: "prometheus",
            owner: None,
            target: target.map_err(|invalid| anyhow::anyhow!("{invalid}"))?,
            batching: Batching::at_once("metrics over OTLP"),
            max_entries: usize::MAX,
            max_bytes: usize::MAX,
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Option<Settings>> {
        Settings::read(&Boot::parse("config.yaml", text, &[], &|_| None).expect("a valid file").0)
    }

    #[test]
    fn metrics_are_pushed_only_where_it_is_enabled() {
        assert!(read("").unwrap().is_none());
        assert!(read("plugin_attr: {prometheus: {otlp: {endpoint: 'c.test:1'}}}").unwrap().is_none());
        let settings = read("plugin_attr: {prometheus: {otlp: {enable: true}}}").unwrap().unwrap();
        let spec = settings.spec(Some(&"an id".into())).unwrap();
        assert_eq!(spec.target.servers, [("127.0.0.1".to_owned(), 4318)]);
        assert_eq!(spec.target.settings["endpoints"][0]["uri"], "/v1/metrics");
        assert_eq!(spec.target.settings["resource"]["service.instance.id"], "an id");
        assert_eq!(spec.target.settings["resource"]["process.pid"], std::process::id());
        assert_eq!(settings.every, Duration::from_secs(60));
    }

    #[test]
    fn settings_are_of_their_own_or_those_of_opentelemetry() {
        let shared = "plugin_attr:\n  opentelemetry:\n    resource: {service.name: gate, service.instance.id: mine}\n    \
                      collector: {address: 'c.test:4317', protocol: grpc, request_headers: {Authorization: s3cr3t}}\n  \
                      prometheus:\n    otlp:\n      enable: true\n      interval: 1ms\n";
        let target = |more: &str| {
            let settings = read(&format!("{shared}{more}")).unwrap().unwrap();
            assert_eq!(settings.every, SHORTEST);
            settings.spec(Some(&"an id".into())).unwrap().target
        };
        let same = target("");
        assert_eq!(same.servers, [("c.test".to_owned(), 4317)]);
        assert_eq!((&same.settings["grpc"], &same.settings["timeout"]), (&true.into(), &3000.into()));
        assert_eq!(same.settings["headers"]["Authorization"], "s3cr3t");
        assert_eq!(same.settings["resource"]["service.instance.id"], "mine");
        let own = target("      endpoint: https://own.test\n      timeout: 250ms\n      ssl_verify: false\n");
        assert_eq!(own.servers, [("own.test".to_owned(), 443)]);
        assert_eq!((&own.settings["grpc"], &own.settings["timeout"]), (&false.into(), &250.into()));
        assert_eq!(own.settings["headers"].get("Authorization"), None);
        assert_eq!(own.settings["endpoints"][0]["tls"]["verify"], false);
    }

    #[test]
    fn mistakes_are_named() {
        for wrong in ["endpoint: 'ftp://c.test'", "headers: {Content-Length: '1'}", "headers: {A: \"b\\n\"}"]
        {
            let text = format!("plugin_attr: {{prometheus: {{otlp: {{enable: true, {wrong}}}}}}}");
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains("plugin_attr.prometheus.otlp in config.yaml: "), "{error}");
        }
    }
}
