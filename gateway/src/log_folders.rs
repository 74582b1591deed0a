//! The folders in which plugins may write files (`plugin_attr.file-logger.allowed_paths`), and those that they may serve
//! (`plugin_attr.static-files.roots`).

use std::path::{Path, PathBuf};

use model::Boot;
use sdk::files::ServedFolders;
use sdk::sink::Folders;

/// The folders that the boot file lists, and what of the gateway's own must not be written. `config` is the boot
/// file, `resources` the declarative file.
pub fn of(boot: &Boot, config: Option<&Path>, resources: Option<&Path>, data: &Path) -> Folders {
    let base = real(data);
    let listed = boot.attr("/plugin_attr/file-logger").texts("/allowed_paths").unwrap_or_default();
    let listed = listed.into_iter().filter(|path| !path.is_empty()).map(|path| {
        let path = base.join(path);
        (text(&path), text(&real(&path)))
    });
    let mut own = vec![base.clone()];
    let folder = |file: &Path| file.parent().map(real);
    own.extend([config, resources].into_iter().flatten().filter_map(folder));
    own.extend(written(boot, &base));
    let folders = Folders::new(&text(&base), listed.collect::<Vec<_>>(), own.iter().map(|path| text(path)));
    folders.with_served(served(boot, config, resources, data))
}

/// The logs and caches that the gateway writes.
fn written(boot: &Boot, data: &Path) -> Vec<PathBuf> {
    let logs = [&boot.http.access_log, &boot.streams.access_log].into_iter().flatten();
    let logs = logs.map(|log| log.path.as_str()).chain(boot.error_log.as_deref());
    let logs = logs.map(|path| real(&data.join(path)));
    logs.chain(boot.proxy_cache.zones.iter().filter_map(|zone| Some(real(&zone.disk.as_ref()?.path))))
        .collect()
}

/// The files of private keys that the boot file names.
fn keys(boot: &Boot) -> impl Iterator<Item = &Path> {
    let admin = boot.admin.tls.as_ref().map(|tls| tls.key.as_path());
    admin.into_iter().chain(boot.etcd.certificate.as_ref().map(|(_, key)| key.as_path()))
}

/// The folders that plugins may serve. Relative ones start from the folder of the resources, or of the boot file.
fn served(boot: &Boot, config: Option<&Path>, resources: Option<&Path>, data: &Path) -> ServedFolders {
    let folder = resources.or(config).and_then(Path::parent).map_or_else(|| data.to_owned(), Path::to_owned);
    let base = real(if folder.as_os_str().is_empty() { Path::new(".") } else { &folder });
    let listed = boot.attr("/plugin_attr/static-files").texts("/roots").unwrap_or_default().into_iter();
    let listed = listed.filter(|path| !path.is_empty()).map(|path| {
        let path = base.join(path);
        (text(&path), text(&real(&path)))
    });
    let data = real(data);
    let written = written(boot, &data).into_iter().filter(|path| !path.starts_with(&data));
    let files = [config, resources].into_iter().flatten().chain(keys(boot)).map(real);
    let own = [data.clone()].into_iter().chain(files).chain(written).map(|path| text(&path));
    ServedFolders::new(&text(&base), listed.collect::<Vec<_>>(), own.collect::<Vec<_>>())
}

/// An absolute path with its links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut there = path.as_path();
    loop {
        if let Ok(found) = std::fs::canonicalize(there) {
            return path.strip_prefix(there).map_or(found.clone(), |rest| found.join(rest));
        }
        match there.parent() {
            Some(parent) => there = parent,
            None => return path,
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_default_is_the_data_folder_s_logs_and_the_machine_s() {
        let folder = tempfile::tempdir().unwrap();
        let there = std::fs::canonicalize(folder.path()).unwrap();
        // The data folder is reached through a link.
        std::fs::create_dir(there.join("disk")).unwrap();
        symlink(there.join("disk"), there.join("data")).unwrap();
        let config = there.join("config.yaml");
        let folders = of(&Boot::default(), Some(&config), None, &there.join("data"));
        let file = |path: &Path| folders.file(path.to_str().unwrap()).map(|file| file.to_string());
        let expected = Ok(there.join("disk/logs/a.log").to_str().unwrap().to_owned());
        assert_eq!(file(Path::new("logs/a.log")), expected);
        assert_eq!(file(&there.join("disk/logs/a.log")), expected);
        assert_eq!(file(Path::new("a.log")), expected);
        assert_eq!(file(Path::new("/var/log/a.log")).map(drop), Ok(()));
        for refused in ["logs/access.log", "access.log", "logs/../store.key", "../config.yaml", "/etc/a.log"]
        {
            assert!(file(Path::new(refused)).is_err(), "{refused}");
        }
        assert!(file(&config).is_err());
    }

    #[test]
    fn only_configured_folders_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let there = std::fs::canonicalize(folder.path()).unwrap();
        let (config, resources) = (there.join("config.yaml"), there.join("apisix.yaml"));
        let served = |boot: &Boot, path: &str| {
            let folders = of(boot, Some(&config), Some(&resources), &there.join("data"));
            folders.served().root(path).map(|root| (root.listed, root.below, root.own.len()))
        };
        let path = |below: &str| there.join(below).to_str().unwrap().to_owned();
        assert!(served(&Boot::default(), "html").is_err() && served(&Boot::default(), "/").is_err());
        let text = "plugin_attr: {static-files: {roots: [html, /srv/www]}}\n";
        let (boot, _) = Boot::parse("config.yaml", text, &plugins::names(), &|_| None).unwrap();
        assert_eq!(served(&boot, "html"), Ok((path("html"), String::new(), 0)));
        assert_eq!(served(&boot, "/srv/www/a"), Ok(("/srv/www".to_owned(), "a".to_owned(), 0)));
        assert!(served(&boot, "data").is_err() && served(&boot, ".").is_err());
        let text = "plugin_attr: {static-files: {roots: [.]}}\n";
        let (boot, _) = Boot::parse("config.yaml", text, &plugins::names(), &|_| None).unwrap();
        assert_eq!(served(&boot, "html"), Ok((there.to_str().unwrap().to_owned(), "html".to_owned(), 3)));
    }

    #[test]
    fn logs_caches_and_private_keys_are_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let there = std::fs::canonicalize(folder.path()).unwrap();
        let path = |name: &str| there.join(name).to_str().unwrap().to_owned();
        let text = "plugin_attr: {static-files: {roots: [.]}}\nnginx_config: {error_log: ERROR}\n\
                    deployment: {admin: {https_admin: true, admin_api_mtls: {admin_ssl_cert: CERT, admin_ssl_cert_key: KEY}}}\n\
                    apisix: {proxy_cache: {zones: [{name: disk, memory_size: 1m, disk_size: 1m, disk_path: CACHE, cache_levels: '1:2'}]}}\n";
        let names = ["ERROR", "CERT", "KEY", "CACHE"];
        let text =
            names.iter().fold(text.to_owned(), |text, name| text.replace(name, &path(&name.to_lowercase())));
        let (boot, _) = Boot::parse("config.yaml", &text, &plugins::names(), &|_| None).unwrap();
        let folders = of(&boot, Some(&there.join("config.yaml")), None, Path::new("/elsewhere"));
        let own = folders.served().root(".").unwrap().own;
        for name in ["config.yaml", "error", "key", "cache"] {
            assert!(own.contains(&path(name)), "{name}: {own:?}");
        }
        assert!(!own.contains(&path("cert")));
    }

    #[test]
    fn the_setting_is_the_whole_list() {
        let text = "plugin_attr: {file-logger: {allowed_paths: [/srv/logs, own]}}\n";
        let (boot, _) = Boot::parse("config.yaml", text, &plugins::names(), &|_| None).unwrap();
        let folders = of(&boot, None, None, Path::new("/no-such-folder/data"));
        assert_eq!(folders.file("/srv/logs/a").unwrap().to_string(), "/srv/logs/a");
        assert_eq!(folders.file("own/a").unwrap().to_string(), "/no-such-folder/data/own/a");
        assert!(folders.file("/var/log/a").is_err() && folders.file("logs/a").is_err());
    }
}
