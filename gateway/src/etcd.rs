//! Etcd as the boot file names it, and moving resources into it and out of it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adapters::Names;
use adapters::etcd::{Etcd, Host, Settings, Tls, User, write_all};
use anyhow::{Context, anyhow, bail};
use control::store::{Embedded, Refused, Step, Store, StoreError};
use model::boot::{self, Boot};
use model::declarative::Format;
use model::{Declarative, Key, Kind, Severity};
use rustls::client::Resumption;
use serde_json::Value;
use snapshot::certs::{self, ClientTls};

use crate::cli::{EtcdCommand, Files};
use crate::files::{self, Found};
use crate::instance::export::{self, StoredResources};
use crate::{check, say, tls, wiring};

/// How long etcd may take to be read by a command.
const READING: Duration = Duration::from_secs(60);

/// TLS sessions that are kept for the next connection.
const SESSIONS: usize = 8;

/// How etcd is used, as the boot file says.
///
/// # Errors
/// An address or a certificate that cannot be used.
pub fn settings(boot: &Boot, data: Option<&Path>) -> anyhow::Result<Settings> {
    let etcd = &boot.etcd;
    let hosts: Vec<Host> = etcd
        .hosts
        .iter()
        .map(|url| Host::parse(url))
        .collect::<Result<_, _>>()
        .map_err(|why| anyhow!("deployment.etcd.host in config.yaml: {why}"))?;
    let tls = match hosts.iter().any(|host| host.tls) {
        true => Some(client_tls(boot)?),
        false => None,
    };
    Ok(Settings {
        hosts,
        prefix: etcd.prefix.clone(),
        user: etcd.user.clone().map(|(name, password)| User { name, password }),
        tls,
        names: None,
        timeout: etcd.timeout,
        startup_retry: etcd.startup_retry,
        progress_interval: etcd.progress_interval,
        progress_timeout: etcd.progress_timeout,
        max_size: etcd.max_size,
        copy: data.filter(|_| etcd.keep_copy).map(|data| data.join("etcd")),
        history: wiring::history(boot),
    })
}

fn client_tls(boot: &Boot) -> anyhow::Result<Tls> {
    let boot::Etcd { certificate, verify, sni, .. } = &boot.etcd;
    let common = tls::settings(boot)?.common;
    let certified = match certificate {
        Some((cert, key)) => {
            let read = |path: &Path, setting: &str| {
                std::fs::read_to_string(path)
                    .with_context(|| format!("deployment.etcd.tls.{setting}: {}", path.display()))
            };
            let pair = model::CertificatePair { cert: read(cert, "cert")?, key: read(key, "key")? };
            let wrong = |invalid| anyhow!("deployment.etcd.tls: {invalid}");
            Some(certs::pair(&pair, &common.provider).map_err(wrong)?)
        }
        None => None,
    };
    let trusted = verify.then(|| common.trusted.clone());
    let spoken = ClientTls::new(trusted, certified, &common.provider).context("TLS towards etcd")?;
    Ok(Tls { config: spoken.resuming(true, Resumption::in_memory_sessions(SESSIONS)), sni: sni.clone() })
}

/// Where it is, for people.
pub fn place(boot: &Boot) -> PathBuf {
    format!("etcd {} {}", boot.etcd.hosts.join(","), boot.etcd.prefix).into()
}

/// Everything in etcd, secrets in the clear.
///
/// # Errors
/// Etcd cannot be read.
pub fn held(found: &Found) -> anyhow::Result<StoredResources> {
    let (runtime, store) = open(found)?;
    Ok(runtime.block_on(export::of_store(&store))?)
}

/// `sluice etcd import|export`. False if the files are wrong.
///
/// # Errors
/// Etcd, a file or a store cannot be read or written.
pub fn run(command: &EtcdCommand) -> anyhow::Result<bool> {
    match command {
        EtcdCommand::Export { files, to } => export(files, to),
        EtcdCommand::Import { files, from, replace } => import(files, from, *replace),
    }
}

/// A runtime, and etcd with encryption over it, read.
fn open(found: &Found) -> anyhow::Result<(tokio::runtime::Runtime, control::store::Sealed)> {
    let settings = settings(&found.boot, None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let etcd = {
        let _on = runtime.enter();
        let questions = wiring::questions(&found.boot, wiring::names(&found.boot));
        Etcd::start(Settings { names: Some(Names(questions)), ..settings })
    };
    runtime.block_on(etcd.ready(READING.min(found.boot.etcd.timeout)))?;
    let store = wiring::sealed(&found.boot, &*wiring::catalog(&found.boot)?, Arc::new(etcd))?;
    Ok((runtime, store))
}

fn find(files: &Files) -> Option<Found> {
    files::find(files).map_err(|diagnostics| check::report(diagnostics, false)).ok()
}

fn export(files: &Files, to: &Path) -> anyhow::Result<bool> {
    let Some(found) = find(files) else { return Ok(false) };
    let (runtime, store) = open(&found)?;
    let held = runtime.block_on(export::of_store(&store))?;
    warn_of_undecryptable(runtime.block_on(store.unopened())?);
    let count = held.items.len();
    if is_file(to) {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options
            .open(to)
            .and_then(|mut file| file.write_all(export::yaml(&held).as_bytes()))
            .with_context(|| format!("cannot write {} (it must be a new file)", to.display()))?;
    } else {
        let store = wiring::sealed(
            &found.boot,
            &*wiring::catalog(&found.boot)?,
            Arc::new(Embedded::open_with(to, wiring::history(&found.boot))?),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        if !runtime.block_on(export::of_store(&store))?.items.is_empty() {
            bail!("the store in {} is not empty: name another folder", to.display());
        }
        let steps = steps(held.items);
        let written = runtime.block_on(store.write(Box::new(move |_| Ok(steps.clone()))));
        written.map_err(|refused| match refused {
            Refused::Store(error) => anyhow!(error),
            other => anyhow!(other.to_string()),
        })?;
        if let Some(plugins) = held.plugins {
            runtime.block_on(store.put_plugins(plugins))?;
        }
    }
    say::out(format_args!("{}: {count} resources", to.display()));
    Ok(true)
}

fn import(files: &Files, from: &Path, replace: bool) -> anyhow::Result<bool> {
    let Some(found) = find(files) else { return Ok(false) };
    let Some(source) = source(&found, from)? else { return Ok(false) };
    let (runtime, store) = open(&found)?;
    let there = runtime.block_on(export::of_store(&store))?;
    if !there.items.is_empty() && !replace {
        bail!(
            "{} holds {} resources already\n  help: with --replace they become those of {}",
            place(&found.boot).display(),
            there.items.len(),
            from.display()
        );
    }
    let count = source.items.len();
    let wanted: std::collections::HashMap<&Key, &Value> =
        source.items.iter().map(|(key, value)| (key, value)).collect();
    // Resources are deleted after those that refer to them, as `items` lists them before those.
    let gone = there.items.iter().rev().filter(|(key, _)| !wanted.contains_key(key));
    let gone: Vec<Step> = gone.map(|(key, _)| Step::Delete { key: key.clone() }).collect();
    let same: std::collections::HashMap<&Key, &Value> =
        there.items.iter().map(|(key, value)| (key, value)).collect();
    let news: Vec<(Key, Value)> =
        source.items.iter().filter(|(key, value)| same.get(key) != Some(&value)).cloned().collect();
    let deleted = gone.len();
    let changed = runtime.block_on(async {
        let changed = write_all(&store, steps(news)).await?;
        write_all(&store, gone).await?;
        if let Some(plugins) = source.plugins.filter(|plugins| there.plugins.as_ref() != Some(plugins)) {
            store.put_plugins(plugins).await?;
        }
        Ok::<_, StoreError>(changed)
    })?;
    say::out(format_args!(
        "{}: {count} resources, of which {changed} were written; {deleted} others were deleted",
        place(&found.boot).display()
    ));
    Ok(true)
}

/// Names secrets that may be of another keyring.
fn warn_of_undecryptable(found: Option<(String, usize)>) {
    if let Some((first, count)) = found {
        let more = match count {
            1 => String::new(),
            _ => format!(", and so are secrets of {} other resources", count - 1),
        };
        say::err(format_args!(
            "warning: {first} looks encrypted and no key of apisix.data_encryption.keyring decrypts it{more}: it is \
             taken for the secret itself\n  help: if it is encrypted, add its key behind the others of the keyring, and \
             do this again"
        ));
    }
}

/// Reads a file, or a folder with a store, with secrets in the clear. `None` if it is wrong; the diagnostics are
/// printed.
///
/// # Errors
/// It cannot be read.
pub fn source(found: &Found, from: &Path) -> anyhow::Result<Option<StoredResources>> {
    if !from.is_file() {
        let (held, unopened) = export::of_folder(&found.boot, from)?;
        warn_of_undecryptable(unopened);
        return Ok(Some(held));
    }
    let opener = wiring::opener(&found.boot, &*wiring::catalog(&found.boot)?)?;
    let text = std::fs::read_to_string(from).with_context(|| from.display().to_string())?;
    let json = from.extension().is_some_and(|extension| extension == "json");
    let format = if json { Format::Json } else { Format::Yaml };
    let name = from.display().to_string();
    let read = match Declarative::parse(&name, &text, format, &files::built_plugins(), &files::env) {
        Ok(read) => read,
        Err(error) => {
            check::report(vec![*error], false);
            return Ok(None);
        }
    };
    let wrong = read.diagnostics.iter().any(|found| found.severity == Severity::Error);
    check::report(read.diagnostics, false);
    if wrong {
        return Ok(None);
    }
    let mut unopened: Option<(String, usize)> = None;
    let items = read.items.into_iter().map(|item| {
        let mut value = Value::clone(&item.value);
        // As the Admin API stores them.
        let id = match item.key.kind {
            Kind::Consumer => None,
            Kind::Secret => Some(item.key.id.as_str()),
            _ => Some(item.key.leaf()),
        };
        if let (Some(id), Some(fields)) = (id, value.as_object_mut()) {
            fields.insert("id".to_owned(), id.into());
        }
        if let Some(place) = opener.open(&item.key, &mut value) {
            unopened.get_or_insert((place, 0)).1 += 1;
        }
        (item.key, value)
    });
    let held =
        StoredResources { items: items.collect(), plugins: read.plugins, ..StoredResources::default() };
    warn_of_undecryptable(unopened);
    Ok(Some(held))
}

fn steps(items: Vec<(Key, Value)>) -> Vec<Step> {
    items.into_iter().map(|(key, value)| Step::Put { key, value, ttl: None }).collect()
}

/// Whether a new thing of that name is to be a file.
fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}
