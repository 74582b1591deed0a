//! The libraries of the system that a program is linked with.

use crate::shell::output;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Part of glibc, so that its version covers them.
const GLIBC: [&str; 7] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

pub struct Needs {
    /// The oldest version of glibc that has all symbols, such as `2.17`.
    pub glibc: String,
    /// Whether the unwinder of gcc is linked dynamically.
    pub libgcc: bool,
}

impl Needs {
    pub fn of(binary: &Path) -> Result<Needs> {
        parse(&output(Command::new("objdump").arg("--private-headers").arg(binary))?)
    }

    /// Dependencies of a Debian package.
    pub fn deb(&self) -> String {
        let libgcc = if self.libgcc { ", libgcc-s1 | libgcc1" } else { "" };
        format!("\"libc6 (>= {})\"{libgcc}", self.glibc)
    }

    /// Dependencies of an RPM package.
    pub fn rpm(&self) -> String {
        let libgcc = if self.libgcc { ", \"libgcc_s.so.1()(64bit)\"" } else { "" };
        format!("\"libc.so.6(GLIBC_{})(64bit)\"{libgcc}", self.glibc)
    }
}

fn parse(headers: &str) -> Result<Needs> {
    let (mut newest, mut libgcc) = (Vec::new(), false);
    for line in headers.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next_back()) {
            (Some("NEEDED"), Some("libgcc_s.so.1")) => libgcc = true,
            (Some("NEEDED"), Some(library)) if !GLIBC.contains(&library) => {
                bail!("the program needs {library}, which no package depends on")
            }
            (_, Some(symbol)) => {
                let Some(version) = symbol.strip_prefix("GLIBC_") else { continue };
                let numbers = version.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>();
                newest = newest.max(numbers.with_context(|| format!("the version {symbol}"))?);
            }
            _ => {}
        }
    }
    if newest.is_empty() {
        bail!("the program is not linked with glibc");
    }
    let glibc = newest.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    Ok(Needs { glibc, libgcc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_counts_and_an_unknown_library_is_an_error() {
        let headers = "Dynamic Section:\n  NEEDED               libc.so.6\n\nVersion References:\n  required from libc.so.6:\n    \
                       0x09691a75 0x00 05 GLIBC_2.2.5\n    0x06969197 0x00 04 GLIBC_2.17\n    0x0d696914 0x00 03 GLIBC_2.4\n";
        let needs = parse(headers).unwrap();
        assert_eq!(needs.deb(), "\"libc6 (>= 2.17)\"");
        assert_eq!(needs.rpm(), "\"libc.so.6(GLIBC_2.17)(64bit)\"");
        let needs = parse(&format!("  NEEDED  libgcc_s.so.1\n{headers}")).unwrap();
        assert_eq!(needs.deb(), "\"libc6 (>= 2.17)\", libgcc-s1 | libgcc1");
        assert!(parse(&format!("  NEEDED  libssl.so.3\n{headers}")).is_err());
        assert!(parse("").is_err());
    }
}
