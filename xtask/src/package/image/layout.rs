//! The files of an OCI image layout: blobs named by their digests, and the documents that refer to them.

use super::sum;
use crate::shell::{output, run};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A descriptor: media type, digest and size.
pub struct Blob(Value);

/// `sha256:…` of a file.
pub fn digest(file: &Path) -> Result<String> {
    Ok(format!("sha256:{}", sum(file)?))
}

/// Copies a file into the blobs of a layout.
pub fn add(layout: &Path, file: &Path, media: &str) -> Result<Blob> {
    let (digest, size) = (digest(file)?, std::fs::metadata(file)?.len());
    let place = place(layout, &digest)?;
    std::fs::create_dir_all(place.parent().unwrap_or(layout))?;
    std::fs::copy(file, place)?;
    Ok(Blob(json!({"mediaType": media, "digest": digest, "size": size})))
}

/// Writes the documents: configuration, manifest and index, and what `docker load` before version 25 reads.
pub fn write(layout: &Path, config: &Value, layers: &[Blob], version: &str) -> Result<()> {
    let config = document(layout, config, CONFIG)?;
    let layers: Vec<_> = layers.iter().map(|blob| &blob.0).collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config.0, "layers": layers});
    let mut manifest = document(layout, &manifest, MANIFEST)?;
    manifest.0["annotations"] = json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("docker.io/library/sluice:{version}"),
    });
    save(layout, "index.json", &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.0]}))?;
    save(layout, "oci-layout", &json!({"imageLayoutVersion": "1.0.0"}))?;
    let path = |descriptor: &Value| {
        descriptor["digest"].as_str().unwrap_or_default().replace("sha256:", "blobs/sha256/")
    };
    let layers: Vec<_> = layers.into_iter().map(path).collect();
    let tags = [format!("sluice:{version}")];
    save(layout, "manifest.json", &json!([{"Config": path(&config.0), "RepoTags": tags, "Layers": layers}]))
}

/// Compares every blob with its descriptor, and every layer with the digest of its content. Returns the configuration
/// of the image and the files of its layers.
pub fn verify(layout: &Path, version: &str) -> Result<(Value, Vec<PathBuf>)> {
    ensure!(
        read(&layout.join("oci-layout"))?["imageLayoutVersion"] == "1.0.0",
        "the version of the layout is not 1.0.0"
    );
    let index = read(&layout.join("index.json"))?;
    let manifests = index["manifests"].as_array().context("the index has no manifests")?;
    ensure!(manifests.len() == 1, "the index has {} manifests", manifests.len());
    let name = &manifests[0]["annotations"]["org.opencontainers.image.ref.name"];
    ensure!(name == version, "the name of the image is {name}, not {version}");
    let manifest = read(&blob(layout, &manifests[0], MANIFEST)?)?;
    let config = read(&blob(layout, &manifest["config"], CONFIG)?)?;
    let descriptors = manifest["layers"].as_array().context("the manifest has no layers")?;
    let unpacked = config["rootfs"]["diff_ids"].as_array().context("the configuration has no diff_ids")?;
    ensure!(unpacked.len() == descriptors.len(), "{} layers, {} diff_ids", descriptors.len(), unpacked.len());
    let mut layers = Vec::new();
    for (descriptor, expected) in descriptors.iter().zip(unpacked) {
        let file = blob(layout, descriptor, "application/vnd.oci.image.layer.v1.tar+gzip")?;
        let content = file.with_extension("unpacked");
        run(Command::new("sh").args(["-c", "gzip -dc \"$0\" > \"$1\""]).arg(&file).arg(&content))?;
        ensure!(digest(&content)? == *expected, "the content of {} has another digest", file.display());
        std::fs::remove_file(content)?;
        layers.push(file);
    }
    let known = output(Command::new("ls").arg(layout.join("blobs/sha256")))?;
    ensure!(known.lines().count() == layers.len() + 2, "blobs that no document refers to:\n{known}");
    println!("{} layers, all digests right", layers.len());
    Ok((config, layers))
}

fn document(layout: &Path, value: &Value, media: &str) -> Result<Blob> {
    save(layout, "document", value)?;
    let file = layout.join("document");
    let blob = add(layout, &file, media)?;
    std::fs::remove_file(file)?;
    Ok(blob)
}

fn save(layout: &Path, name: &str, value: &Value) -> Result<()> {
    Ok(std::fs::write(layout.join(name), serde_json::to_vec(value)?)?)
}

fn read(file: &Path) -> Result<Value> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.display()))
}

/// The file of a blob, whose media type, size and digest are those of its descriptor.
fn blob(layout: &Path, descriptor: &Value, media: &str) -> Result<PathBuf> {
    ensure!(descriptor["mediaType"] == media, "the media type of {descriptor} is not {media}");
    let name = descriptor["digest"].as_str().with_context(|| format!("{descriptor} has no digest"))?;
    let file = place(layout, name)?;
    let size = std::fs::metadata(&file).with_context(|| format!("no blob {name}"))?.len();
    ensure!(descriptor["size"] == size, "the size of {name} is {size}, not {}", descriptor["size"]);
    ensure!(digest(&file)? == name, "the content of {name} has another digest");
    Ok(file)
}

fn place(layout: &Path, digest: &str) -> Result<PathBuf> {
    let hash =
        digest.strip_prefix("sha256:").with_context(|| format!("{digest} is not a digest of SHA-256"))?;
    ensure!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest} is no digest");
    Ok(layout.join("blobs/sha256").join(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_blob_is_found() {
        let layout = std::env::temp_dir().join(format!("sluice-layout-{}", std::process::id()));
        std::fs::create_dir_all(&layout).unwrap();
        let file = layout.join("layer");
        std::fs::write(&file, "content").unwrap();
        let unpacked = digest(&file).unwrap();
        run(Command::new("gzip").args(["-n", "-k"]).arg(&file)).unwrap();
        let media = "application/vnd.oci.image.layer.v1.tar+gzip";
        let layer = add(&layout, &layout.join("layer.gz"), media).unwrap();
        let name = place(&layout, layer.0["digest"].as_str().unwrap()).unwrap();
        write(&layout, &json!({"rootfs": {"diff_ids": [unpacked]}}), &[layer], "1.2.3").unwrap();
        assert_eq!(verify(&layout, "1.2.3").unwrap().1.len(), 1);
        verify(&layout, "1.2.4").unwrap_err();
        let mut changed = std::fs::read(&name).unwrap();
        changed[9] ^= 1;
        std::fs::write(name, changed).unwrap();
        let error = verify(&layout, "1.2.3").unwrap_err().to_string();
        assert!(error.ends_with("has another digest"), "{error}");
        std::fs::remove_dir_all(layout).unwrap();
    }
}
