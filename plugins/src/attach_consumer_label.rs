//! attach-consumer-label: sends labels of the consumer to the upstream, in headers.
//!
//! Settings as in APISIX 3.18. The client's own headers of these names are removed, also in spellings that a server may
//! confuse with them.

use indexmap::IndexMap;
use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, HeaderName, Plugin, Step};
use serde::Deserialize;
use serde_json::Value;

/// The configured plugin.
pub struct AttachConsumerLabel {
    /// Headers, and the labels whose values they have.
    headers: Vec<(HeaderName, String)>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    headers: IndexMap<String, String>,
}

impl Plugin for AttachConsumerLabel {
    const NAME: &'static str = "attach-consumer-label";
    const PRIORITY: i32 = 2399;
    const PHASES: Phases = Phases::BEFORE_PROXY;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<AttachConsumerLabel, Invalid> {
        let read = |(name, label): (String, String)| {
            let header = HeaderName::new(&name).map_err(|_| {
                let invalid = Invalid::new("this is not a valid header name").got(name.as_str());
                invalid.within(&name).under("/headers").expected("letters, digits and `-`")
            })?;
            // The schema requires the dollar sign.
            Ok((header, label.trim_start_matches('$').to_owned()))
        };
        Ok(AttachConsumerLabel { headers: config.headers.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    fn before_proxy(&self, x: &mut Exchange<'_>) -> Step {
        for (name, _) in &self.headers {
            x.remove_lookalikes(name);
        }
        for (name, label) in &self.headers {
            let labels = x.consumer().map(|consumer| consumer.labels.as_slice()).unwrap_or_default();
            match labels.iter().find(|(own, _)| own == label).map(|(_, value)| value.clone()) {
                Some(value) if x.set_header(name, value.as_bytes()).is_ok() => {}
                Some(_) => {
                    x.remove_header(name);
                    x.complain(Self::NAME, "a label cannot stand in a header and was left out");
                }
                None => x.remove_header(name),
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sdk::Consumer;
    use sdk::consumers::Identity;
    use sdk::testing::Probe;
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_replace_the_headers_of_the_client() {
        let consumer = |labels: &[(&str, &str)]| {
            let labels =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Arc::new(Consumer {
                name: "jack".into(),
                group_id: None,
                custom_id: None,
                labels,
                chain: None,
                slot: 1,
            })
        };
        let config = json!({"headers": {"X-Team": "$team", "X-Role": "$role"}});
        for (labels, expected) in [
            (Some(&[("team", "a"), ("other", "b")][..]), [Some(&b"a"[..]), None]),
            (Some(&[("team", "a\n"), ("role", "c")]), [None, Some(b"c")]),
            (Some(&[]), [None, None]),
            (None, [None, None]),
        ] {
            let forged = [("X-Team", "root"), ("X_Role", "root"), ("x-role", "root")];
            let mut probe = Probe::request("GET", "/", &forged);
            let plugin: AttachConsumerLabel = probe.stage(config.clone()).unwrap();
            let mut x = probe.exchange();
            if let Some(labels) = labels {
                x.authenticate(Identity::anonymous(&consumer(labels)));
            }
            assert!(matches!(plugin.before_proxy(&mut x), Step::Next));
            assert_eq!(["X-Team", "X-Role"].map(|name| x.header(name)), expected);
            assert_eq!(x.header("X_Role"), None);
        }
        for wrong in
            [json!({"headers": {"a b": "$a"}}), json!({"headers": {"a": "b"}}), json!({"headers": {}})]
        {
            assert!(Probe::default().stage::<AttachConsumerLabel>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
