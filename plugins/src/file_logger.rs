//! file-logger: appends an entry for each request to a file.
//!
//! Settings as in APISIX 3.18. A thread writes each entry at once; a renamed file is opened
//! again on USR1.

use model::Invalid;
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::sink::{Batching, Destination, Sink, Spec};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct FileLogger {
    pub(crate) logger: Logger,
    /// Only what fits one of these is logged.
    only: Option<Vec<Expr>>,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    path: Option<String>,
    #[serde(rename = "match")]
    only: Option<Vec<Value>>,
    #[serde(flatten)]
    options: Options,
}

impl Plugin for FileLogger {
    const NAME: &'static str = "file-logger";
    const PRIORITY: i32 = 399;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "path": {"type": "string"},
            "match": {"type": "array", "maxItems": 20, "items": {"type": "array"}},
        });
        json!({"type": "object", "properties": Options::extend(own)})
    }

    fn metadata_schema() -> Option<Value> {
        let mut properties = Options::metadata();
        properties.insert("path".to_owned(), json!({"type": "string"}));
        Some(json!({"type": "object", "properties": properties}))
    }

    fn check_metadata(metadata: &Value, cx: &Build<'_>) -> Result<(), Invalid> {
        match metadata.get("path").and_then(Value::as_str) {
            Some(path) => cx.log_file(path).map(drop).map_err(|invalid| invalid.at("/path")),
            None => Ok(()),
        }
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<FileLogger, Invalid> {
        let only = config
            .only
            .map(|only| only.iter().map(|one| logger::expr("match", one)).collect())
            .transpose()?;
        let logger = Logger::build(config.options, cx)?;
        let metadata = || cx.metadata().and_then(|metadata| metadata.get("path")).and_then(Value::as_str);
        let target = match config.path.as_deref().or_else(metadata) {
            Some(path) => cx.log_file(path).map_err(|invalid| invalid.at("/path"))?,
            // A check does not see the metadata.
            None if cx.owner.collection.is_empty() => Destination::file(""),
            None => {
                return Err(Invalid::new(
                    "property \"path\" is not set in either the plugin conf or the metadata",
                ));
            }
        };
        let sink = cx.sink(Spec {
            plugin: Self::NAME,
            owner: None,
            target,
            batching: Batching::at_once("file logger"),
            // An entry in the queue takes some 80 bytes beside its text.
            max_entries: 1 << 18,
            max_bytes: usize::MAX,
        });
        Ok(FileLogger { logger, only, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        if self.only.as_ref().is_none_or(|only| only.iter().any(|expr| expr.matches(x))) {
            let mut entry = self.logger.entry(x, None);
            entry.push(b'\n');
            self.sink.push(x, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{FixedNames, Probe};

    use super::*;

    #[test]
    fn the_path_is_the_configuration_s_or_the_metadata_s() {
        let probe = Probe::default();
        let build = |config, metadata: Option<Value>| {
            probe.stage_with::<FileLogger>(config, metadata.as_ref(), &FixedNames::default()).map(drop)
        };
        assert_eq!(build(json!({"path": "logs/a.log"}), None), Ok(()));
        assert_eq!(build(json!({}), Some(json!({"path": "logs/a.log"}))), Ok(()));
        let catalog = crate::Catalog::new(probe.services.clone(), Default::default());
        assert_eq!(
            sdk::Catalog::check(&catalog, "file-logger", &json!({}), sdk::catalog::SchemaType::Route),
            Ok(())
        );
        assert_eq!(
            build(json!({}), None).unwrap_err().reason,
            "property \"path\" is not set in either the plugin conf or the metadata"
        );
        for path in ["", "a\u{0}b", "../a.log", "/data/store.key", "logs/../store.key"] {
            let config = json!({"path": path});
            assert_eq!(build(config.clone(), None).unwrap_err().pointer, "/path", "{path}");
            assert_eq!(build(json!({}), Some(config.clone())).unwrap_err().pointer, "/path", "{path}");
            let check = |place| sdk::Catalog::check(&catalog, "file-logger", &config, place);
            assert_eq!(check(sdk::catalog::SchemaType::Metadata).unwrap_err().pointer, "/path", "{path}");
            assert_eq!(check(sdk::catalog::SchemaType::Route).unwrap_err().pointer, "/path", "{path}");
        }
        // A check does not see what a reference stands for.
        let config = json!({"path": "$env://LOG"});
        assert_eq!(
            sdk::Catalog::check(&catalog, "file-logger", &config, sdk::catalog::SchemaType::Route),
            Ok(())
        );
        assert_eq!(build(config, None).unwrap_err().pointer, "/path");
        let invalid = build(json!({"path": "logs/a", "match": [[["arg_a", "~~~", "b"]]]}), None).unwrap_err();
        assert!(
            invalid.reason.starts_with("failed to validate the 'match' expression: "),
            "{}",
            invalid.reason
        );
    }
}
