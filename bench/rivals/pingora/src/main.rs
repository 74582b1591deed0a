//! The rival `pingora`: the smallest reverse proxy Pingora's own guide leads to,
//! plus the three things some scenarios ask of every gateway: a table of exact
//! paths, an API key and a request limit per client address.
//!
//! ```text
//! pingora-rival --listen 127.0.0.1:20010 --upstream 127.0.0.1:20900 --threads 1
//!               [--routes FILE] [--key KEY] [--limit PER_MINUTE]
//! ```
//! It never logs a request and keeps upstream connections open, as every other
//! rival here does.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::prelude::*;
use pingora_core::server::configuration::ServerConf;
use pingora_limits::rate::Rate;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests of a client address within the current minute.
static SEEN: LazyLock<Rate> = LazyLock::new(|| Rate::new(Duration::from_secs(60)));

/// Options of the command line.
#[derive(Default)]
struct Options {
    listen: String,
    upstream: String,
    threads: usize,
    routes: Option<HashSet<String>>,
    key: Option<String>,
    limit: Option<isize>,
}

struct Rival {
    options: Options,
}

#[async_trait]
impl ProxyHttp for Rival {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn request_filter(&self, session: &mut Session, _ctx: &mut ()) -> Result<bool> {
        let head = session.req_header();
        let known = match &self.options.routes {
            Some(routes) => routes.contains(head.uri.path()),
            None => head.uri.path() == "/hello",
        };
        if !known {
            session.respond_error(404).await?;
            return Ok(true);
        }
        if let Some(key) = &self.options.key
            && head.headers.get("apikey").map(|sent| sent.as_bytes()) != Some(key.as_bytes())
        {
            session.respond_error(401).await?;
            return Ok(true);
        }
        if let Some(limit) = self.options.limit {
            let client = session.client_addr().and_then(|address| address.as_inet()).map(|inet| inet.ip());
            if SEEN.observe(&client, 1) > limit {
                session.respond_error(503).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.options.upstream.as_str(), false, String::new())))
    }
}

fn main() {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("pingora-rival: {problem}");
            std::process::exit(2);
        }
    };
    let conf = ServerConf {
        threads: options.threads,
        upstream_keepalive_pool_size: 1024,
        // Ended with the harness at once, instead of draining for minutes.
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let listen = options.listen.clone();
    let mut service = http_proxy_service(&server.configuration, Rival { options });
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { threads: 1, ..Options::default() };
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        match word.as_str() {
            "--listen" => options.listen = value,
            "--upstream" => options.upstream = value,
            "--threads" => options.threads = value.parse().map_err(|_| "--threads wants a number")?,
            "--routes" => {
                let text = std::fs::read_to_string(&value).map_err(|error| format!("{value}: {error}"))?;
                options.routes = Some(text.lines().map(str::to_owned).collect());
            }
            "--key" => options.key = Some(value),
            "--limit" => options.limit = Some(value.parse().map_err(|_| "--limit wants a number")?),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if options.listen.is_empty() || options.upstream.is_empty() {
        return Err("--listen and --upstream are needed".to_owned());
    }
    Ok(options)
}
