//! The configuration of an image from the last stage of a Dockerfile, so that both ways of building it agree.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The `config` of an OCI image. Instructions that it cannot express are errors.
pub fn config(dockerfile: &str, labels: &[(&str, String)]) -> Result<Value> {
    let mut config = Map::new();
    config.insert(
        "Labels".to_owned(),
        labels.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect(),
    );
    for line in last_stage(dockerfile) {
        let (instruction, rest) =
            line.split_once(' ').with_context(|| format!("no instruction: {line:?}"))?;
        let rest = rest.trim();
        match instruction {
            // The layers themselves.
            "COPY" => {}
            "USER" => drop(config.insert("User".to_owned(), json!(rest))),
            "WORKDIR" => drop(config.insert("WorkingDir".to_owned(), json!(rest))),
            "STOPSIGNAL" => drop(config.insert("StopSignal".to_owned(), json!(rest))),
            "ENV" => drop(config.insert("Env".to_owned(), json!([rest]))),
            "ENTRYPOINT" => drop(config.insert("Entrypoint".to_owned(), list(rest)?)),
            "CMD" => drop(config.insert("Cmd".to_owned(), list(rest)?)),
            "VOLUME" => {
                let volumes = list(rest)?;
                let names = volumes.as_array().into_iter().flatten().filter_map(Value::as_str);
                let volumes = names.map(|name| (name.to_owned(), json!({}))).collect();
                config.insert("Volumes".to_owned(), Value::Object(volumes));
            }
            "EXPOSE" => {
                let ports = rest.split_whitespace();
                let named =
                    |port: &str| if port.contains('/') { port.to_owned() } else { format!("{port}/tcp") };
                let ports = ports.map(|port| (named(port), json!({}))).collect();
                config.insert("ExposedPorts".to_owned(), Value::Object(ports));
            }
            "HEALTHCHECK" => drop(config.insert("Healthcheck".to_owned(), health(rest)?)),
            other => bail!("the instruction {other} of the Dockerfile is not read here"),
        }
    }
    Ok(Value::Object(config))
}

/// Instructions after the last `FROM`, without comments.
fn last_stage(dockerfile: &str) -> Vec<&str> {
    let lines: Vec<_> =
        dockerfile.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let start = lines.iter().rposition(|line| line.starts_with("FROM ")).map_or(0, |at| at + 1);
    lines[start..].to_vec()
}

fn list(text: &str) -> Result<Value> {
    let list: Vec<String> =
        serde_json::from_str(text).with_context(|| format!("{text} is not a list of texts in JSON"))?;
    Ok(json!(list))
}

/// `--interval=10s … CMD [...]`, with times in nanoseconds.
fn health(text: &str) -> Result<Value> {
    let (options, command) = text.split_once("CMD ").context("the health check has no CMD")?;
    let mut health = Map::new();
    for option in options.split_whitespace() {
        let (name, value) =
            option.split_once('=').with_context(|| format!("the option {option} has no value"))?;
        if name == "--retries" {
            health.insert("Retries".to_owned(), json!(value.parse::<u64>()?));
            continue;
        }
        let seconds = value.strip_suffix('s').and_then(|value| value.parse::<u64>().ok());
        let nanoseconds =
            seconds.with_context(|| format!("{option} is no number of seconds"))? * 1_000_000_000;
        let key = match name {
            "--interval" => "Interval",
            "--timeout" => "Timeout",
            "--start-period" => "StartPeriod",
            other => bail!("the option {other} of the health check is not read here"),
        };
        health.insert(key.to_owned(), json!(nanoseconds));
    }
    let mut test = vec![json!("CMD")];
    test.extend(list(command)?.as_array().into_iter().flatten().cloned());
    ensure!(test.len() > 1, "the health check has no program");
    health.insert("Test".to_owned(), Value::Array(test));
    Ok(Value::Object(health))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stage_becomes_the_configuration() {
        let text = "FROM a AS b\nUSER root\nRUN x\n\nFROM scratch\n# comment\nCOPY --from=b /x /\nUSER 7:8\n\
                    EXPOSE 80 53/udp\nVOLUME [\"/d\"]\nHEALTHCHECK --interval=10s --retries=3 CMD [\"/p\", \"status\"]\n\
                    ENTRYPOINT [\"/p\"]\nCMD [\"run\"]\n";
        let expected = json!({
            "Labels": {"a": "b"}, "User": "7:8", "ExposedPorts": {"80/tcp": {}, "53/udp": {}}, "Volumes": {"/d": {}},
            "Healthcheck": {"Interval": 10_000_000_000_u64, "Retries": 3, "Test": ["CMD", "/p", "status"]},
            "Entrypoint": ["/p"], "Cmd": ["run"],
        });
        assert_eq!(config(text, &[("a", "b".to_owned())]).unwrap(), expected);
        for wrong in ["FROM x\nRUN y", "FROM x\nCMD run", "FROM x\nHEALTHCHECK --interval=1m CMD [\"p\"]"] {
            config(wrong, &[]).unwrap_err();
        }
    }
}
