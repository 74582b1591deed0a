//! The positions of keys in commands, as in Redis's COMMAND. Commands that are not listed have one
//! key, the first argument.

/// The arguments of a command that are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    first: u8,
    /// Counted from the end if negative.
    last: i8,
    step: u8,
}

const NONE: Keys = Keys { first: 0, last: 0, step: 0 };
const FIRST: Keys = Keys { first: 1, last: 1, step: 1 };

#[rustfmt::skip]
const ROWS: &[(Keys, &[&str])] = &[
    (NONE, &[
        "acl", "asking", "auth", "bgrewriteaof", "bgsave", "blmpop", "bzmpop", "client", "cluster", "command",
        "config", "dbsize", "debug", "discard", "echo", "eval", "eval_ro", "evalsha", "evalsha_ro", "exec",
        "failover", "fcall", "fcall_ro", "flushall", "flushdb", "function", "hello", "info", "keys", "lastsave",
        "latency", "lmpop", "lolwut", "memory", "module", "monitor", "multi", "object", "pfselftest", "ping",
        "psubscribe", "psync", "publish", "pubsub", "punsubscribe", "quit", "randomkey", "readonly",
        "readwrite", "replconf", "replicaof", "reset", "role", "save", "scan", "script", "select", "shutdown",
        "sintercard", "slaveof", "slowlog", "subscribe", "swapdb", "sync", "time", "unsubscribe", "unwatch",
        "wait", "xgroup", "xinfo", "xread", "xreadgroup", "zdiff", "zinter", "zintercard", "zmpop", "zunion",
    ]),
    (Keys { first: 1, last: -1, step: 1 }, &[
        "del", "exists", "mget", "pfcount", "pfmerge", "sdiff", "sdiffstore", "sinter", "sinterstore",
        "ssubscribe", "sunion", "sunionstore", "sunsubscribe", "touch", "unlink", "watch",
    ]),
    (Keys { first: 1, last: -1, step: 2 }, &["mset", "msetnx"]),
    (Keys { first: 1, last: -2, step: 1 }, &["blpop", "brpop", "bzpopmax", "bzpopmin"]),
    (Keys { first: 1, last: 2, step: 1 }, &[
        "blmove", "brpoplpush", "copy", "geosearchstore", "lcs", "lmove", "rename", "renamenx", "rpoplpush",
        "smove", "zrangestore",
    ]),
    (Keys { first: 2, last: -1, step: 1 }, &["bitop"]),
    (Keys { first: 2, last: 2, step: 1 }, &["pfdebug"]),
    (Keys { first: 3, last: 3, step: 1 }, &["migrate"]),
];

impl Keys {
    /// The keys of the command of this name, in lower case.
    pub fn of(command: &str) -> Keys {
        ROWS.iter().find(|(_, names)| names.contains(&command)).map_or(FIRST, |(keys, _)| *keys)
    }

    /// Whether the command has no keys.
    pub fn are_none(self) -> bool {
        self == NONE
    }

    /// Whether the argument at index `at` of `arguments` is a key; the command's name is at 0.
    #[inline]
    pub fn has(self, at: u64, arguments: u64) -> bool {
        let last = match u64::try_from(self.last) {
            Ok(last) => last,
            Err(_) => arguments.saturating_sub(self.last.unsigned_abs().into()),
        };
        self.step > 0
            && (u64::from(self.first)..=last).contains(&at)
            && (at - u64::from(self.first)).is_multiple_of(self.step.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_positions_match_redis() {
        let keys = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let keys = Keys::of(words[0]);
            let is_key = |at: &usize| keys.has(*at as u64, words.len() as u64);
            (0..words.len()).filter(is_key).map(|at| words[at]).collect::<Vec<_>>().join(" ")
        };
        for (line, expected) in [
            ("get k", "k"),
            ("set k v ex 10", "k"),
            ("unknown-name k v", "k"),
            ("ping", ""),
            ("publish c m", ""),
            ("mget a b c", "a b c"),
            ("mset a 1 b 2", "a b"),
            ("blpop a b 0", "a b"),
            ("rename a b", "a b"),
            ("bitop and d a b", "d a b"),
            ("pfdebug x k v", "k"),
            ("migrate h p k 0 1", "k"),
            ("get", ""),
            ("blpop", ""),
        ] {
            assert_eq!(keys(line), expected, "{line}");
        }
        assert!(Keys::of("ping").are_none() && !Keys::of("get").are_none());
    }
}
