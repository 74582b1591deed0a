//! Where `top`, `tap` and `routes` read: the control API of the running instance, or the Admin API of another machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use super::super::{Act, PATIENCE, read, running};
use crate::cli::{Files, Remote};
use crate::tls;

/// The environment variable with the key of the Admin API.
const KEY: &str = "SLUICE_ADMIN_KEY";

/// The longest event; a tap's is at most some 150 KiB.
const MOST_LINE: u64 = 1 << 20;

/// The largest answer that is no stream.
const MOST_BODY: u64 = 512 << 20;

/// The longest silence of a stream, which has an event each second.
const SILENCE: Duration = Duration::from_secs(30);

/// An API with the live view.
#[derive(Debug, Clone)]
pub struct Source {
    /// `host:port`
    authority: String,
    /// The path before `live`, `tap` and `routes`.
    prefix: &'static str,
    key: Option<String>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Source {
    /// `None` if the files are wrong; the diagnostics are printed.
    ///
    /// # Errors
    /// As for [`running`], or the URL, its key or its authorities are invalid.
    pub fn of(files: &Files, remote: &Remote) -> anyhow::Result<Option<Source>> {
        if let Some(url) = &remote.admin {
            return Source::of_url(url, remote).map(Some);
        }
        let Some(found) = read(files) else { return Ok(None) };
        let (address, _) = running(&found, Act::Ask)?;
        Ok(Some(Source { authority: address.to_string(), prefix: "/v1/", key: None, tls: None }))
    }

    fn of_url(url: &str, remote: &Remote) -> anyhow::Result<Source> {
        let wrong = || {
            format!(
                "{url:?} is no address of an Admin API\n  help: write http://HOST:PORT or https://HOST:PORT"
            )
        };
        let (scheme, rest) = url.split_once("://").with_context(wrong)?;
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, port)| match port.parse::<u16>() {
            Ok(_) => host,
            Err(_) => authority,
        });
        anyhow::ensure!(!host.is_empty() && !authority.contains('@'), wrong());
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => bail!(wrong()),
        };
        anyhow::ensure!(
            is_tls || remote.ca.is_none(),
            "--ca needs an --admin with https://, since {url:?} is not encrypted\n  help: write https://, or leave --ca out"
        );
        let port = if is_tls { 443 } else { 80 };
        let authority = if host == authority { format!("{authority}:{port}") } else { authority.to_owned() };
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = match is_tls {
            true => Some((client(remote.ca.as_deref())?, ServerName::try_from(name).with_context(wrong)?)),
            false => None,
        };
        let key = match &remote.key_file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the key in {}", path.display()))?,
            None => std::env::var(KEY).unwrap_or_default(),
        };
        let key = Some(key.trim().to_owned()).filter(|key| !key.is_empty());
        anyhow::ensure!(
            key.iter().all(|key| key.bytes().all(|byte| byte.is_ascii_graphic())),
            "the key of the Admin API has characters that no key has"
        );
        Ok(Source { authority, prefix: "/apisix/admin/", key, tls })
    }

    /// The address, for people.
    pub fn address(&self) -> &str {
        &self.authority
    }

    /// Reads a stream of events, and calls `take` with the kind and the data of each until it returns false. The gateway
    /// ends a stream whose connection is older than `deployment.admin.connection_timeout`; another one follows.
    ///
    /// # Errors
    /// The gateway refuses the stream, or the connection fails; or that of `take`.
    pub fn events(
        &self,
        name: &str,
        mut take: impl FnMut(&str, &Value) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        while self.stream(name, &mut take)? {}
        Ok(())
    }

    /// Reads one stream; false if `take` has returned false.
    fn stream(
        &self,
        name: &str,
        take: &mut dyn FnMut(&str, &Value) -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let mut lines = self.request(name)?;
        let mut kind = String::new();
        while let Some(line) = line(&mut lines)? {
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut kind);
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(data).context("an event of the gateway is not JSON")?;
                if !take(&kind, &data)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads an answer that ends.
    ///
    /// # Errors
    /// The gateway refuses the request, the connection fails, or the answer is not JSON.
    pub fn get(&self, name: &str) -> anyhow::Result<Value> {
        let mut body = Vec::new();
        self.request(name)?.take(MOST_BODY).read_to_end(&mut body)?;
        serde_json::from_slice(&body).with_context(|| format!("the answer of {} is not JSON", self.authority))
    }

    /// Sends a request and reads the head of its answer.
    fn request(&self, name: &str) -> anyhow::Result<BufReader<Box<dyn Connection>>> {
        let mut connection =
            self.connect().with_context(|| format!("cannot connect to {}", self.authority))?;
        let key = self.key.iter().map(|key| format!("X-API-KEY: {key}\r\n")).collect::<String>();
        // An answer to HTTP/1.0 has no chunks.
        let Source { authority, prefix, .. } = self;
        write!(connection, "GET {prefix}{name} HTTP/1.0\r\nHost: {authority}\r\n{key}\r\n")?;
        connection.flush()?;
        let mut lines = BufReader::new(connection);
        let first = line(&mut lines)?.context("the gateway closed the connection without an answer")?;
        while line(&mut lines)?.is_some_and(|line| !line.is_empty()) {}
        if first.split(' ').nth(1) != Some("200") {
            let mut body = Vec::new();
            // An answer that ends early has no reason to show.
            let _ = lines.take(64 << 10).read_to_end(&mut body);
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            let parts = ["error_msg", "message", "description"].map(|name| answer[name].as_str());
            let reason = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
            bail!("{}", super::clean(if reason.is_empty() { &first } else { &reason }));
        }
        Ok(lines)
    }

    fn connect(&self) -> anyhow::Result<Box<dyn Connection>> {
        let mut failed = None;
        for address in self.authority.to_socket_addrs()? {
            let stream = match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => stream,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(match &self.tls {
                None => Box::new(stream),
                Some((config, name)) => {
                    let session = ClientConnection::new(config.clone(), name.clone())?;
                    Box::new(StreamOwned::new(session, stream))
                }
            });
        }
        Err(failed.map_or_else(|| anyhow::anyhow!("the name has no address"), Into::into))
    }
}

/// A connection, with or without TLS.
trait Connection: Read + Write {}

impl<C: Read + Write> Connection for C {}

/// TLS as the gateway speaks it, trusting the authorities of a file, or the system's.
fn client(ca: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let system = tls::system();
    let path = ca.or(system.as_deref());
    let path =
        path.context("this system has no certificates of authorities\n  help: name a file with --ca")?;
    let wrong = || format!("cannot read the authorities in {}", path.display());
    let mut roots = RootCertStore::empty();
    for found in CertificateDer::pem_file_iter(path).with_context(wrong)? {
        let added = roots.add(found.with_context(wrong)?);
        // The system's file may hold some that are not understood; a file that was named may not.
        if ca.is_some() {
            added.with_context(wrong)?;
        }
    }
    anyhow::ensure!(!roots.is_empty(), "there is no certificate in {}", path.display());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// The next line without its end; `None` at the end of the stream.
fn line(lines: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok((read > 0).then(|| text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> anyhow::Result<Source> {
        Source::of_url(url, &Remote { admin: Some(url.to_owned()), key_file: None, ca: None })
    }

    #[test]
    fn addresses_have_a_host_and_the_port_of_their_scheme() {
        for (url, authority) in [
            ("http://10.0.0.1:9180", "10.0.0.1:9180"),
            ("http://a.test/", "a.test:80"),
            ("http://[::1]:9180/apisix/admin", "[::1]:9180"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert_eq!(source(url).unwrap().authority, authority, "{url}");
        }
        let ca = Some("ca.pem".into());
        let http = "http://10.0.0.1:9180".to_owned();
        let wrong =
            Source::of_url(&http, &Remote { admin: Some(http.clone()), key_file: None, ca }).unwrap_err();
        assert!(wrong.to_string().contains("--ca needs an --admin with https://"), "{wrong}");
        for url in ["10.0.0.1:9180", "ftp://a", "http://", "http://:80", "http://user@host"] {
            assert!(source(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_key_with_line_ends_is_no_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a\r\nX: y\n").unwrap();
        let url = "http://10.0.0.1:9180".to_owned();
        let remote = Remote { admin: Some(url.clone()), key_file: Some(file.path().into()), ca: None };
        assert!(Source::of_url(&url, &remote).is_err());
        std::fs::write(file.path(), "good-key\n").unwrap();
        assert_eq!(Source::of_url(&url, &remote).unwrap().key.as_deref(), Some("good-key"));
    }
}
