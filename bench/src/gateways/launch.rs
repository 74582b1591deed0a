//! Writes a gateway's configuration and returns the command that starts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use minijinja::{Value, context};

use super::{ADMIN_KEY, Gateway, KEY, Place, Setup};
use crate::certificate;
use crate::load::{Call, Front};
use crate::mixture;
use crate::process::Launch;
use crate::template;
use crate::upstream::Answer;

/// A rate limit far above any run, for gateways that take it on the command line.
const FAR_LIMIT: &str = "2000000000";

/// Prepares `gateway` (whose program is `program`) in `place` for `setup`.
///
/// # Errors
/// A file cannot be written.
pub fn launch(gateway: Gateway, program: &Path, setup: &Setup, place: &Place) -> Result<Launch> {
    let folder = &place.folder;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    let values = values(setup, place)?;
    let write = |name: &str, template: &str| template::write(&folder.join(name), template, values.clone());
    let path = |name: &str| folder.join(name).display().to_string();
    let launch = Launch::new(program, folder);
    if setup.front.tls() {
        certificate::shared(setup.rsa)?.write(folder)?;
    }
    Ok(match gateway {
        Gateway::Sluice => {
            write("config.yaml", include_str!("../../sluice/config.yaml"))?;
            if setup.wasm {
                fs::write(
                    folder.join("nothing.wasm"),
                    wat::parse_str(include_str!("../../load/nothing.wat"))?,
                )?;
            }
            if setup.admin {
                fs::create_dir_all(folder.join("data"))?;
                launch.arg("run").arg(path("")).arg("--data").arg(path("data"))
            } else {
                if setup.mixed || setup.consumers > 0 || setup.certificates > 0 {
                    fs::write(folder.join("apisix.yaml"), mixture::file(setup, place.upstream_port)?)?;
                } else {
                    write("apisix.yaml", include_str!("../../sluice/apisix.yaml"))?;
                }
                launch.arg("run").arg(path(""))
            }
        }
        Gateway::Nginx => {
            write("nginx.conf", include_str!("../../rivals/nginx.conf"))?;
            launch.arg("-e").arg(path("error.log")).arg("-c").arg(path("nginx.conf"))
        }
        Gateway::Haproxy => {
            write("haproxy.cfg", include_str!("../../rivals/haproxy.cfg"))?;
            let map: String = setup.paths().iter().map(|path| format!("{path} 1\n")).collect();
            fs::write(folder.join("routes.map"), map)?;
            launch.arg("-db").arg("-f").arg(path("haproxy.cfg"))
        }
        Gateway::Envoy => {
            write("envoy.yaml", include_str!("../../rivals/envoy.yaml"))?;
            if setup.mixed {
                write("routes.json", include_str!("../../rivals/envoy-routes.json"))?;
            }
            launch
                .arg("-c")
                .arg(path("envoy.yaml"))
                .arg("--concurrency")
                .arg(setup.workers.to_string())
                .arg("--disable-hot-restart")
                .arg("--log-level")
                .arg("error")
        }
        Gateway::Caddy => {
            write("Caddyfile", include_str!("../../rivals/Caddyfile"))?;
            launch
                .arg("run")
                .arg("--config")
                .arg(path("Caddyfile"))
                .arg("--adapter")
                .arg("caddyfile")
                .env("GOMAXPROCS", setup.workers.to_string())
                .env("HOME", path(""))
                .env("XDG_DATA_HOME", path("data"))
        }
        Gateway::Pingora => {
            let mut launch = launch
                .arg("--listen")
                .arg(format!("127.0.0.1:{}", place.port))
                .arg("--upstream")
                .arg(format!("127.0.0.1:{}", place.upstream_port))
                .arg("--threads")
                .arg(setup.workers.to_string());
            if setup.routes > 1 {
                fs::write(folder.join("routes"), setup.paths().join("\n"))?;
                launch = launch.arg("--routes").arg(path("routes"));
            }
            if setup.key {
                launch = launch.arg("--key").arg(KEY);
            }
            if setup.limit {
                launch = launch.arg("--limit").arg(FAR_LIMIT);
            }
            launch
        }
        Gateway::SpringCloud => {
            write("application.yml", include_str!("../../rivals/spring-cloud-gateway.yml"))?;
            java(folder, program)
        }
        Gateway::Zuul1 => {
            write("application.yml", include_str!("../../rivals/zuul1.yml"))?;
            // Spring Cloud Netflix uses internals of the class library, as was usual before Java 9.
            java(folder, program).env("JDK_JAVA_OPTIONS", "--add-opens=java.base/java.lang=ALL-UNNAMED")
        }
        Gateway::Apisix => {
            // SLUICE_BENCH_APISIX is its folder; a copy of it keeps the installation unchanged.
            let status = std::process::Command::new("cp")
                .arg("-a")
                .arg(program.join("."))
                .arg(path("apisix"))
                .status()?;
            if !status.success() {
                bail!("cannot copy {}", program.display());
            }
            write("apisix/conf/config.yaml", include_str!("../../sluice/config.yaml"))?;
            write("apisix/conf/apisix.yaml", include_str!("../../sluice/apisix.yaml"))?;
            let script = "cd apisix && bin/apisix init && exec openresty -p $PWD -g 'daemon off;'";
            Launch::new("/bin/sh", folder).arg("-c").arg(script)
        }
        Gateway::Kong => {
            write("kong.yml", include_str!("../../rivals/kong.yml"))?;
            launch
                .arg("start")
                .env("KONG_DATABASE", "off")
                .env("KONG_DECLARATIVE_CONFIG", path("kong.yml"))
                .env("KONG_PREFIX", path("prefix"))
                .env("KONG_NGINX_DAEMON", "off")
                .env("KONG_NGINX_WORKER_PROCESSES", setup.workers.to_string())
                .env("KONG_PROXY_LISTEN", format!("127.0.0.1:{}", place.port))
                .env("KONG_ADMIN_LISTEN", "off")
                .env("KONG_PROXY_ACCESS_LOG", "off")
        }
        Gateway::Linkerd => {
            write("linkerd.yaml", include_str!("../../rivals/linkerd.yaml"))?;
            launch.arg(path("linkerd.yaml"))
        }
        Gateway::Direct => bail!("nothing is started for a direct measurement"),
    })
}

fn values(setup: &Setup, place: &Place) -> Result<Value> {
    let identity = certificate::shared(setup.rsa)?;
    let mut hosts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for index in 0..if setup.mixed { setup.routes } else { 0 } {
        hosts.entry(mixture::host(index).unwrap_or_default()).or_default().push(index);
    }
    Ok(context! {
        mixed => setup.mixed,
        // The indexes of the routes of each host; routes without one are under the empty name.
        hosts => hosts,
        folder => place.folder.display().to_string(),
        port => place.port,
        admin_port => place.admin_port,
        metrics_port => place.metrics_port,
        spare_port => place.spare_port,
        control_port => place.control_port,
        upstream_port => place.upstream_port,
        workers => setup.workers,
        paths => setup.paths(),
        key => setup.key.then_some(KEY),
        limit => setup.limit,
        redis_port => setup.redis.then_some(place.redis_port),
        metrics => setup.metrics,
        ten => setup.ten,
        admin => setup.admin,
        control => setup.admin || setup.tap.is_some(),
        access_log => setup.access_log,
        plugin => setup.plugin.map(|plugin| context! {
            name => plugin.name,
            settings => plugin.settings,
            consumer => plugin.consumer.map(|(settings, _)| settings),
        }),
        wasm => setup.wasm,
        admin_key => ADMIN_KEY,
        tls => setup.front.tls(),
        http2 => setup.front.http2(),
        http3 => setup.front == Front::Http3,
        grpc => setup.call == Call::Grpc,
        websocket => setup.call == Call::WebSocket,
        relay => setup.relay,
        bulk => setup.answer == Answer::Large1M,
        name => certificate::NAME,
        // JSON strings are YAML strings.
        certificate => serde_json::to_string(&identity.certificate)?,
        private_key => serde_json::to_string(&identity.key)?,
    })
}

/// A Java VM sees the cores it is pinned to and selects its collector and threads by them.
fn java(folder: &Path, jar: &Path) -> Launch {
    Launch::new("java", folder).arg("-Xms512m").arg("-Xmx512m").arg("-jar").arg(jar.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_renders_every_setup() {
        let folder = std::env::temp_dir().join(format!("bench-launch-{}", std::process::id()));
        let place = Place {
            folder: folder.clone(),
            port: 1,
            admin_port: 2,
            metrics_port: 3,
            spare_port: 4,
            control_port: 5,
            upstream_port: 6,
            redis_port: 7,
        };
        let everything =
            Setup { routes: 3, key: true, limit: true, metrics: true, workers: 2, ..Setup::PLAIN };
        for setup in [
            Setup::PLAIN,
            everything,
            Setup { admin: true, ..Setup::PLAIN },
            Setup { limit: true, redis: true, ..Setup::PLAIN },
            Setup { tap: Some(""), ..Setup::PLAIN },
            Setup { plugin: Some(super::super::alone::LUA_HEADERS), ..Setup::PLAIN },
            Setup { front: Front::H2, call: Call::Grpc, answer: Answer::Grpc, ..Setup::PLAIN },
            Setup { front: Front::Http3, answer: Answer::Large1M, ..Setup::PLAIN },
            Setup { wasm: true, ..Setup::PLAIN },
            Setup { mixed: true, routes: 5, ..Setup::PLAIN },
            Setup { call: Call::WebSocket, relay: true, ..Setup::PLAIN },
        ] {
            for gateway in Gateway::ALL {
                // These copy an installed program or start no program.
                if !matches!(gateway, Gateway::Apisix | Gateway::Direct) {
                    launch(gateway, Path::new("program"), &setup, &place).unwrap();
                }
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
