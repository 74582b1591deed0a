//! Access logs.

use serde_json::Value;

use super::context::{Context, Report};
use super::format;
use super::value::{self, text};
use crate::finding::Severity::Cosmetic;
use crate::node::Node;

/// Reports an access log, with the format that config.yaml would need.
pub(super) fn read(context: &Context<'_>, log: &Node<'_>, report: &mut Report) {
    let extension = value::extension(log);
    report.fields(log, &[("filter", Cosmetic, "all requests are logged")]);
    let path =
        extension.config.as_ref().and_then(|config| text(config, "path")).unwrap_or_default().to_owned();
    let format = extension.config.as_ref().and_then(written);
    if let Some(config) = &extension.config {
        config.whole();
    }
    let place = log;
    report.cosmetic(
        place,
        "access_log",
        "requests are logged by the gateway's own access log: `nginx_config.http.access_log` in config.yaml",
    );
    let target = match extension.kind.as_str() {
        "StdoutAccessLog" | "stdout" => "/dev/stdout",
        "StderrAccessLog" | "stderr" => "/dev/stderr",
        _ => path.as_str(),
    };
    let translated = format
        .and_then(|format| format::template(format.trim_end_matches('\n'), context.source.variables).ok());
    report.hint(match (target.is_empty(), translated) {
        (false, Some(format)) => format!("set it to `{target}`, and `access_log_format` to `{format}`"),
        (false, None) => format!("set it to `{target}`"),
        (true, _) => "a plugin such as http-logger sends entries to a server".to_owned(),
    });
}

/// The format as a text.
fn written(config: &Node<'_>) -> Option<String> {
    if let Some(format) = text(config, "format") {
        return Some(format.to_owned());
    }
    let format = config.some("log_format");
    if let Some(format) = &format {
        if let Some(text) = text(format, "text_format") {
            return Some(text.to_owned());
        }
        if let Some(source) = format.some("text_format_source") {
            return source.some("inline_string")?.text();
        }
    }
    let json = config.any(&["json_format", "typed_json_format"]).or_else(|| format?.some("json_format"))?;
    match json.value() {
        Value::Object(_) => serde_json::to_string(json.value()).ok(),
        _ => None,
    }
}
