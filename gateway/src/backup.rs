//! `sluice backup` and `restore`: the part of the data folder that cannot be made again, as one file.
//!
//! A running gateway copies its own store, sealed, beside it; without one the store is opened here. A restore
//! unpacks and reads everything before it replaces anything.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use aws_lc_rs::digest::{self, SHA256};
use control::store::embedded::restore::{self, Contents};
use control::store::{Embedded, Store, StoreError};
use model::boot::Provider;
use serde_json::{Value, json};

use self::archive::{Member, Reader, Writer};
use crate::cli::Files;
use crate::files::Found;
use crate::instance::{self, Act, export};
use crate::{say, wiring};

mod archive;

/// The list of the other members, which is the first one.
const MANIFEST: &str = "manifest.json";
/// The version of the manifest.
const FORMAT: u64 = 1;
const STORE: &str = "store.redb";
/// Files of the data folder with their largest size. The first two are in every backup.
const MEMBERS: [(&str, u64); 4] =
    [(STORE, u64::MAX), ("store.key", 4096), ("admin.key", 4096), ("instance.id", 4096)];
const LARGEST_MANIFEST: u64 = 64 << 10;
/// How long a running gateway may take to copy its store.
const COPYING: Duration = Duration::from_mins(10);

/// `sluice backup`: writes a new file. False if the configuration is wrong.
///
/// # Errors
/// No embedded store; one that cannot be copied or read; a file that cannot be written.
pub fn backup(output: &Path, files: &Files) -> anyhow::Result<bool> {
    let Some(found) = instance::of_instance(files, Act::Ask)? else { return Ok(false) };
    has_embedded_store(&found)?;
    if !export::holds_store(&found.data) {
        bail!(
            "there is no store in {}\n  help: name the configuration, or the folder with --data",
            found.data.display()
        );
    }
    if fs::symlink_metadata(output).is_ok() {
        bail!("cannot write {}: it exists already\n  help: a backup is a new file", output.display());
    }
    let copy = copy(&found)?;
    let written = write(&found.data, &copy, output);
    // It would only take space, and be replaced by the next one.
    let _ = fs::remove_file(&copy);
    let (contents, names) = written?;
    say::out(format_args!("{}: {} ({})", output.display(), names.join(", "), summary(&contents)));
    if let Some(config) = &found.config {
        say::out(format_args!(
            "not in it: {}, whose data_encryption.keyring decrypts the secrets of the resources; files that it names; \
             logs; cached responses",
            config.display()
        ));
    }
    Ok(true)
}

/// `sluice restore`: replaces the files of the data folder by those of a backup. False if the configuration is
/// wrong.
///
/// # Errors
/// A data folder that is in use, or not empty without `force`; a backup that is damaged. Then nothing has changed.
pub fn restore(input: &Path, files: &Files, force: bool) -> anyhow::Result<bool> {
    let Some(found) = instance::read(files) else { return Ok(false) };
    has_embedded_store(&found)?;
    let data = &found.data;
    let file = File::open(input).with_context(|| format!("cannot read {}", input.display()))?;
    restore::finish(data)
        .with_context(|| format!("cannot finish an earlier restore in {}", data.display()))?;
    let _lock = restore::lock(data)?;
    if !force && let Some(name) = first_entry(data)? {
        bail!(
            "{} is not empty: {name} is in it\n  help: --force replaces the store and the keys in it by those of the \
             backup, and keeps files of other names",
            data.display()
        );
    }
    let is_new = !data.exists();
    restore::stage(data)?;
    let staged = data.join(restore::STAGED);
    let verified = unpack(file, &staged).with_context(|| format!("cannot restore {}", input.display()));
    let unopened = verified.and_then(|manifest| {
        let contents = restore::contents(&staged.join(STORE))?;
        let (_, unopened) = export::of_folder(&found.boot, &staged)?;
        owned_as(data, &staged)?;
        restore::commit(data)?;
        Ok((manifest, contents, unopened))
    });
    if unopened.is_err() && staged.exists() {
        // Nothing has been replaced; what is left of the attempt has no effect.
        let _ = fs::remove_dir_all(&staged);
        let _ = is_new.then(|| fs::remove_dir(data));
    }
    let (manifest, contents, unopened) = unopened?;
    let made = manifest.get("created").and_then(Value::as_str).unwrap_or_default();
    say::out(format_args!("{}: {}, as of {made}", data.display(), summary(&contents)));
    if let Some((place, count)) = unopened {
        let config = found.config.as_ref().map_or("the defaults".into(), |config| config.to_string_lossy());
        say::err(format_args!(
            "warning: {place} cannot be decrypted with apisix.data_encryption.keyring of {config}{}\n  help: use the \
             config.yaml of the gateway that was backed up",
            if count > 1 {
                format!(", and neither can secrets of {}", say::counted(count - 1, "other resource"))
            } else {
                String::new()
            }
        ));
    }
    Ok(true)
}

fn has_embedded_store(found: &Found) -> anyhow::Result<()> {
    match found.boot.provider {
        Provider::Embedded => Ok(()),
        Provider::Etcd => bail!(
            "the resources are in {}, not in the data folder\n  help: `etcdctl snapshot save` backs up the cluster, \
             `sluice etcd export` writes its resources to a file",
            crate::etcd::place(&found.boot).display()
        ),
        Provider::Yaml | Provider::Json => {
            let file = found.resources.clone().unwrap_or_default();
            bail!("the resources are in {}, not in the data folder: copy that file", file.display())
        }
    }
}

/// Has the store copied beside itself, by the gateway that has it open if there is one.
fn copy(found: &Found) -> anyhow::Result<PathBuf> {
    let path = found.data.join("store.copy");
    match Embedded::open_with(&found.data, wiring::history(&found.boot)) {
        Ok(store) => {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            runtime.block_on(store.copy())?;
        }
        Err(StoreError::Locked { .. }) => {
            let (address, _) = instance::running(found, Act::Change)
                .context("a running gateway has the store open, and only that one can copy it")?;
            let (status, body) = instance::send_for(COPYING, address, "POST", "/v1/backup", None, &[], "")?;
            let answer: Value = serde_json::from_str(&body).unwrap_or_default();
            if status != 200 {
                bail!(
                    "the gateway on {address} did not copy its store ({status}): {}",
                    answer
                        .get("error_msg")
                        .and_then(Value::as_str)
                        .unwrap_or("it may be of an earlier version")
                );
            }
            if !path.exists() {
                bail!(
                    "the gateway on {address} copied its store to {}, which is not here\n  help: run this where the \
                     gateway runs, as its user or root",
                    answer.get("copy").and_then(Value::as_str).unwrap_or_default()
                );
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(path)
}

/// Writes the archive; the contents of the store and the names of the members.
fn write(data: &Path, copy: &Path, output: &Path) -> anyhow::Result<(Contents, Vec<&'static str>)> {
    let contents = restore::contents(copy)?;
    let mut members = Vec::new();
    for (name, _) in MEMBERS {
        let path = if name == STORE { copy.to_owned() } else { data.join(name) };
        match File::open(&path) {
            Ok(file) => members.push((name, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
    let cannot = || format!("cannot write {}", output.display());
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(output).with_context(cannot)?;
    let names = members.iter().map(|(name, _)| *name).collect();
    let archived = pack(members, &contents, file).with_context(cannot);
    if archived.is_err() {
        // Half a backup is worse than none.
        let _ = fs::remove_file(output);
    }
    archived.map(|()| (contents, names))
}

fn pack(members: Vec<(&str, File)>, contents: &Contents, to: File) -> io::Result<()> {
    let mut listed = Vec::new();
    for (name, file) in &members {
        let (size, sha256) = digest_of(file)?;
        listed.push(json!({ "name": name, "size": size, "sha256": sha256 }));
    }
    let now = crate::now().unsigned_abs();
    let manifest = json!({
        "program": "sluice",
        "format": FORMAT,
        "version": env!("CARGO_PKG_VERSION"),
        "created": say::utc(now),
        "revision": contents.revision,
        "files": listed,
    });
    let manifest = format!("{manifest:#}\n");
    let mut archive = Writer::new(BufWriter::new(to));
    archive.add(MANIFEST, manifest.len() as u64, now, manifest.as_bytes())?;
    for ((name, file), entry) in members.iter().zip(&listed) {
        let size = entry.get("size").and_then(Value::as_u64).unwrap_or_default();
        io::Seek::seek(&mut &*file, io::SeekFrom::Start(0))?;
        archive.add(name, size, now, file)?;
    }
    archive.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// Size and SHA-256 of a file.
fn digest_of(file: impl Read) -> io::Result<(u64, String)> {
    let mut digesting = Digesting { context: digest::Context::new(&SHA256), to: io::sink() };
    let size = io::copy(&mut io::BufReader::new(file), &mut digesting)?;
    Ok((size, digesting.hex()))
}

/// Unpacks an archive into a folder and compares it with its manifest, which is returned.
fn unpack(file: File, folder: &Path) -> io::Result<Value> {
    let wrong = |what: String| io::Error::other(what);
    if !file.metadata()?.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    let mut archive = Reader::new(io::BufReader::new(file));
    let first = archive.next().ok().flatten();
    let manifest = first.filter(|member| member.name == MANIFEST && member.size <= LARGEST_MANIFEST);
    let manifest =
        manifest.ok_or_else(|| wrong(format!("it is not a backup: {MANIFEST} is not its first file")))?;
    let mut text = Vec::new();
    archive.content(&manifest, &mut text)?;
    let manifest: Value = serde_json::from_slice(&text)?;
    let version = manifest.get("version").and_then(Value::as_str).unwrap_or("unknown");
    if manifest.get("format").and_then(Value::as_u64) != Some(FORMAT) {
        return Err(wrong(format!(
            "it was written by sluice {version} in another format; this version reads format {FORMAT}"
        )));
    }
    let listed = manifest.get("files").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut unpacked = Vec::new();
    while let Some(member) = archive.next()? {
        let Some((name, largest)) = MEMBERS.iter().find(|(name, _)| *name == member.name) else {
            return Err(wrong(format!("it is not a backup: {} is in it", member.name)));
        };
        if member.size > *largest || unpacked.contains(name) {
            return Err(wrong(format!("it is not a backup: {name} is too large, or twice in it")));
        }
        let sha256 = unpack_one(&mut archive, &member, &folder.join(name))?;
        let matches = |entry: &&Value| {
            entry["name"] == **name && entry["size"] == member.size && entry["sha256"] == *sha256
        };
        if !listed.iter().any(|entry| matches(&entry)) {
            return Err(wrong(format!("{name} is damaged: it is not as {MANIFEST} describes it")));
        }
        unpacked.push(*name);
    }
    let named = listed.iter().filter_map(|entry| entry["name"].as_str());
    if let Some(missing) = [STORE, "store.key"].into_iter().chain(named).find(|name| !unpacked.contains(name))
    {
        return Err(wrong(format!("{missing} is not in it")));
    }
    Ok(manifest)
}

/// Writes one member to a new file and returns its SHA-256.
fn unpack_one<R: Read>(archive: &mut Reader<R>, member: &Member, path: &Path) -> io::Result<String> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut to = Digesting { context: digest::Context::new(&SHA256), to: file };
    archive.content(member, &mut to)?;
    to.to.sync_all()?;
    Ok(to.hex())
}

/// Gives the staged files to the owner of the data folder: root may restore what another user serves.
fn owned_as(data: &Path, staged: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(data)?;
    for entry in fs::read_dir(staged)? {
        let path = entry?.path();
        if fs::metadata(&path)?.uid() != owner.uid() {
            std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).with_context(|| {
                format!(
                    "cannot give {} to the owner of {}; run this as that user or root",
                    path.display(),
                    data.display()
                )
            })?;
        }
    }
    Ok(())
}

/// The name of a file in a folder, except for leftovers of an interrupted restore.
fn first_entry(folder: &Path) -> anyhow::Result<Option<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
    };
    for entry in entries {
        let name = entry?.file_name();
        if name != restore::STAGED {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// `2 routes, 1 ssl; revision 7`.
fn summary(contents: &Contents) -> String {
    let counts = contents.resources.iter().map(|(kind, count)| say::counted(*count, kind.word()));
    let counts: Vec<String> = counts.collect();
    let counts = if counts.is_empty() { "no resources".to_owned() } else { counts.join(", ") };
    format!("{counts}; revision {}", contents.revision)
}

/// Passes bytes on and takes their digest.
struct Digesting<W> {
    context: digest::Context,
    to: W,
}

impl<W> Digesting<W> {
    fn hex(self) -> String {
        self.context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.context.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
