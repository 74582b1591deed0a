//! How long the certificates in use are still valid: those of ssl resources, and those read from files at the start.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use admin::{Expiring, Source};
use control::Report;
use model::boot::{Boot, Provider};
use snapshot::certs;

/// A certificate that was read from a file at the start. A newer file has no effect before the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromFile {
    pub path: String,
    /// In seconds since 1970.
    pub not_after: i64,
}

/// Reads the certificates of the Admin API's listener and of the connections to etcd, where these are in use.
///
/// Each file is there once: equal series would make a page of metrics invalid.
pub fn of_files(boot: &Boot, serves_admin: bool) -> Arc<[FromFile]> {
    let etcd =
        boot.etcd.certificate.as_ref().filter(|_| boot.provider == Provider::Etcd).map(|(cert, _)| cert);
    let admin = boot.admin.tls.as_ref().filter(|_| serves_admin).map(|tls| &tls.cert);
    // A file that cannot be read ends the start when it is used.
    admin.into_iter().chain(etcd.filter(|path| admin != Some(*path))).filter_map(|path| read(path)).collect()
}

fn read(path: &Path) -> Option<FromFile> {
    let text = std::fs::read_to_string(path).ok()?;
    let not_after = certs::facts(&text)?.not_after;
    Some(FromFile { path: path.display().to_string(), not_after })
}

/// Up to `most` certificates, those that expire soonest first, and how many there are.
pub fn soonest(report: &Report, files: &[FromFile], most: usize) -> (Vec<Expiring>, usize) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    at(report, files, most, now)
}

fn at(report: &Report, files: &[FromFile], most: usize, now: i64) -> (Vec<Expiring>, usize) {
    let expiring = |source, not_after: i64| Expiring {
        source,
        not_after,
        days_left: not_after.saturating_sub(now).div_euclid(86_400),
    };
    let of_files = files.iter().map(|one| expiring(Source::File(one.path.clone()), one.not_after));
    // They are in order already.
    let of_resources = report
        .expiries
        .iter()
        .take(most)
        .map(|one| expiring(Source::Ssl { id: one.key.id.clone(), sni: one.sni.clone() }, one.not_after));
    let mut all: Vec<Expiring> = of_files.chain(of_resources).collect();
    all.sort_by_key(|one| one.not_after);
    all.truncate(most);
    (all, files.len() + report.expiries.len())
}

#[cfg(test)]
mod tests {
    use model::{Key, Kind};
    use snapshot::compile::Expiry;

    use super::*;

    #[test]
    fn those_that_expire_soonest_come_first_within_the_bound() {
        const DAY: i64 = 86_400;
        let ssl = |id: &str, not_after| {
            let sni = Some(format!("{id}.test"));
            Arc::new(Expiry { key: Key::new(Kind::Ssl, id), sni, not_after })
        };
        let report =
            Report { expiries: Arc::new([ssl("a", 99 * DAY), ssl("b", 103 * DAY)]), ..Report::default() };
        let files = [FromFile { path: "/f".to_owned(), not_after: 101 * DAY - 1 }];
        let shown = |most| {
            let (all, total) = at(&report, &files, most, 100 * DAY);
            let days: Vec<i64> = all.iter().map(|one| one.days_left).collect();
            let names: Vec<String> = all
                .into_iter()
                .map(|one| match one.source {
                    Source::Ssl { id, .. } => id,
                    Source::File(path) => path,
                })
                .collect();
            (names.join(" "), days, total)
        };
        assert_eq!(shown(9), ("a /f b".to_owned(), vec![-1, 0, 3], 3));
        assert_eq!(shown(2), ("a /f".to_owned(), vec![-1, 0], 3));
        assert_eq!(shown(0), (String::new(), vec![], 3));
    }

    #[test]
    fn files_in_use_are_listed_once() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/server-rsa.crt");
        let mut boot = Boot { provider: Provider::Etcd, ..Boot::default() };
        boot.admin.tls = Some(model::boot::AdminTls { cert: file.into(), key: file.into(), ca: None });
        let files = |boot: &Boot, serves_admin| of_files(boot, serves_admin).len();
        assert_eq!((files(&boot, true), files(&boot, false)), (1, 0));
        boot.etcd.certificate = Some((file.into(), file.into()));
        assert_eq!((files(&boot, true), files(&boot, false)), (1, 1));
        boot.etcd.certificate = Some((file.replace("rsa", "ec").into(), file.into()));
        assert_eq!((files(&boot, true), files(&boot, false)), (2, 1));
        boot.provider = Provider::Yaml;
        assert_eq!((files(&boot, true), files(&boot, false)), (1, 0));
    }

    #[test]
    fn a_file_is_read() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/server-rsa.crt"));
        assert!(
            read(path)
                .is_some_and(|one| one.not_after > 1_700_000_000 && one.path.ends_with("server-rsa.crt"))
        );
        assert_eq!(read(Path::new("/nope")), None);
    }
}
