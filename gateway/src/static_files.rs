//! The settings of `plugin_attr.static-files` besides its folders.

use std::sync::Arc;
use std::time::Duration;

use model::Boot;
use sdk::sink::Folders;

/// How files are read.
pub struct Settings {
    pub max_open_files: usize,
    pub threads: usize,
    pub read_timeout: Duration,
}

impl Settings {
    pub fn of(boot: &Boot) -> Settings {
        let attr = boot.attr("/plugin_attr/static-files");
        Settings {
            max_open_files: attr.number("/max_open_files"),
            threads: attr.number("/threads"),
            read_timeout: attr.time("/read_timeout"),
        }
    }
}

/// The files that plugins may serve.
pub fn service(boot: &Boot, folders: &Folders) -> sdk::files::Files {
    let settings = Settings::of(boot);
    sdk::files::Files {
        folders: folders.served().clone(),
        opener: Arc::new(adapters::files::Opener::new(settings.max_open_files)),
        read_timeout: settings.read_timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults() {
        let of = |text: &str| {
            let boot = Boot::parse("config.yaml", text, &plugins::names(), &|_| None).unwrap().0;
            let Settings { max_open_files, threads, read_timeout } = Settings::of(&boot);
            (max_open_files, threads, read_timeout.as_millis())
        };
        assert_eq!(of("{}"), (1000, 4, 10_000));
        let text = "plugin_attr: {static-files: {max_open_files: 3, threads: 1, read_timeout: 500ms}}";
        assert_eq!(of(text), (3, 1, 500));
    }
}
