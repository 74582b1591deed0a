//! The scripts that decide, one for each rule.
//!
//! They are APISIX's, to the byte, so that both keep the same keys in the same way, except that `sliding` can read the
//! previous window itself where a script may read two keys.

use sha1::{Digest, Sha1};

/// A script and its name for EVALSHA.
#[derive(Debug)]
pub struct Script {
    pub text: String,
    pub sha: String,
}

#[derive(Debug)]
pub struct Scripts {
    /// KEYS: counter. ARGV: limit, seconds, cost. Gives the count and the milliseconds left.
    pub fixed: Script,
    /// KEYS: counter, previous counter. ARGV: cost, limit, seconds, seconds left, expiry in seconds; the previous count
    /// where there is one key only. Gives whether it is let in, the count, the previous count.
    pub sliding: Script,
    /// KEYS: counter. ARGV: cost, expiry in seconds. Gives the count.
    pub add: Script,
    /// KEYS: state. ARGV: 1000 * rate, 1000 * burst, Unix milliseconds, expiry in seconds. Gives whether it is let in,
    /// and the excess as text.
    pub pace: Script,
    /// KEYS: requests. ARGV: limit, expiry in seconds, Unix seconds, name of the request. Gives whether it is let in,
    /// and the number of requests.
    pub enter: Script,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts {
            fixed: Script::new(include_str!("scripts/fixed.lua")),
            sliding: Script::new(include_str!("scripts/sliding.lua")),
            add: Script::new(include_str!("scripts/add.lua")),
            pace: Script::new(include_str!("scripts/pace.lua")),
            enter: Script::new(include_str!("scripts/enter.lua")),
        }
    }
}

impl Script {
    /// Removes the white space that APISIX's `core.string.compress_script` removes.
    fn new(source: &str) -> Script {
        let mut text = String::with_capacity(source.len());
        for line in source.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
            let mut parts = line.split(',');
            text.push_str(parts.next().unwrap_or_default());
            for part in parts {
                text.push(',');
                text.push_str(part.trim_start());
            }
            text.push('\n');
        }
        let sha = Sha1::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        Script { text, sha }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_the_names_that_apisix_gives_them() {
        let Scripts { fixed, add, pace, enter, .. } = Scripts::new();
        let names = [fixed, add, pace, enter].map(|script| script.sha);
        assert_eq!(
            names,
            [
                "4290663dbaf4059eff26fa6a41958a298e9391b5",
                "fe0c3e6fee43291d2787c16f6f01fa01f24630e8",
                "f31f43545aa96f31eba19631911616483ff2ec73",
                "d654c7957e3bb57876cd996b6a2709b35f05b955"
            ]
        );
    }
}
