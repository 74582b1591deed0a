//! zstd: compresses responses for clients that read `zstd`.
//!
//! Ours, beside gzip and brotli, in the form of RFC 8878 and, as RFC 9659 demands, with a window of at most
//! 8 MiB. Each piece is given on as soon as it is compressed. A client that accepts several codings gets
//! zstd before brotli before gzip, where a route has these plugins. A part of a body (206) is left as it
//! is, as its range counts plain bytes. The memory of a compressor counts against the worker's budget for
//! held bodies; without memory, the response goes out unchanged. A piece that takes longer than about a
//! millisecond is compressed on a background thread.

use std::io::{self, Write};

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Chunk, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use zstd::stream::write;
use zstd::zstd_safe::CParameter;

use crate::encoding::filtered::{self, Filtered};
use crate::encoding::{Choice, Compressor};

/// The plugin instance.
pub struct Zstd {
    choice: Choice,
    level: u8,
    window_log: u8,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    choice: Choice,
    comp_level: u8,
    window_log: u8,
}

/// One response's compressor.
pub struct Encoder {
    level: u8,
    /// Nanoseconds that the library needs to clear its tables, before the first piece.
    start: u64,
    /// Gone when the stream is over.
    writer: Option<write::Encoder<'static, Vec<u8>>>,
}

impl Plugin for Zstd {
    const NAME: &'static str = "zstd";
    const PRIORITY: i32 = 997;
    const PHASES: Phases = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let choice = Choice::properties();
        json!({
            "type": "object",
            "properties": {
                "types": choice["types"],
                "min_length": choice["min_length"],
                "comp_level": {"type": "integer", "minimum": 1, "maximum": 19, "default": 3},
                "window_log": {"type": "integer", "minimum": 10, "maximum": 23, "default": 19},
                "http_version": choice["http_version"],
                "vary": choice["vary"],
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Zstd, Invalid> {
        Ok(Zstd { choice: config.choice, level: config.comp_level, window_log: config.window_log })
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        filtered::begin(self, x);
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        filtered::is_at_work(self, x)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        filtered::code(self, x, chunk)
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        filtered::code_away(self, x, chunk).await
    }
}

impl Filtered for Zstd {
    const CODING: &'static str = "zstd";
    type Compressor = Encoder;

    fn choice(&self) -> &Choice {
        &self.choice
    }

    fn memory(&self, length: Option<u64>) -> usize {
        memory_for(self.level, self.window(length))
    }

    fn compressor(&self, length: Option<u64>) -> io::Result<Encoder> {
        let window = self.window(length);
        let mut writer = write::Encoder::new(Vec::new(), i32::from(self.level))?;
        // The library chooses window and tables by the length it expects; a longer body fits as well.
        writer.set_parameter(CParameter::SrcSizeHint(1 << window))?;
        let start = tables_for(self.level, window) as u64 / CLEARED;
        Ok(Encoder { level: self.level, start, writer: Some(writer) })
    }
}

impl Zstd {
    /// The binary logarithm of the window for a body of this length: a larger one is of no use.
    fn window(&self, length: Option<u64>) -> u8 {
        let needed = length.map_or(64, |length| 64 - length.saturating_sub(1).leading_zeros());
        self.window_log.min(needed as u8).max(10)
    }
}

impl Compressor for Encoder {
    fn nanoseconds(&self, length: usize) -> u64 {
        (COSTS[usize::from(self.level.min(19))]).saturating_mul(length as u64) + self.start
    }

    fn put(&mut self, part: &[u8]) -> io::Result<()> {
        self.start = 0;
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write_all(part))
    }

    fn take(&mut self, last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        if last {
            *out = self.writer.take().map_or(Ok(Vec::new()), write::Encoder::finish)?;
        } else if let Some(writer) = &mut self.writer {
            writer.flush()?;
            std::mem::swap(out, writer.get_mut());
        }
        Ok(())
    }
}

/// Nanoseconds for a byte of JSON at each level.
const COSTS: [u64; 20] = [3, 3, 4, 5, 6, 12, 15, 25, 30, 40, 60, 80, 80, 220, 300, 450, 600, 600, 800, 1000];

/// Bytes of fresh memory that are cleared in a nanosecond.
const CLEARED: u64 = 4;

/// The binary logarithms of the window and of the entries in two tables at each level, as the library has them for
/// bodies of unknown length; those of the tables are the largest of all that it takes for shorter bodies.
const SIZES: [(u8, u8, u8); 20] = [
    (19, 15, 0),
    (19, 15, 0),
    (20, 16, 0),
    (21, 17, 16),
    (21, 18, 18),
    (21, 19, 15),
    (21, 19, 15),
    (21, 20, 15),
    (21, 20, 15),
    (22, 21, 15),
    (22, 22, 15),
    (22, 22, 17),
    (22, 23, 19),
    (22, 22, 22),
    (22, 23, 22),
    (22, 23, 23),
    (22, 22, 22),
    (23, 22, 23),
    (23, 22, 23),
    (23, 22, 24),
];

/// Bytes of the tables in which the library looks for repetitions.
fn tables_for(level: u8, window: u8) -> usize {
    let (_, hash, chain) = SIZES[usize::from(level.min(19))];
    let bits = |table: u8| table.min(window + 1);
    let tags = if (5..=12).contains(&level) { 1 << bits(hash) } else { 0 };
    (4 << bits(hash)) + if chain > 0 { 4 << bits(chain) } else { 0 } + tags
}

/// Bytes a compressor takes, rounded up: the window, the tables, the parts of a block, and the buffers
/// around it. A test holds it against what is really taken.
fn memory_for(level: u8, window: u8) -> usize {
    let (most, ..) = SIZES[usize::from(level.min(19))];
    let block = 1usize << window.min(17);
    let optimal = match level {
        ..11 => 0,
        11..14 => 150 << 10,
        _ => (150 << 10) + 5 * block,
    };
    (130 << 10) + (1 << window.min(most)) + 6 * block + tables_for(level, window) + optimal
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::encoding::suite::{self, Coding, HTML, answer, asks};

    impl Coding for Zstd {
        fn decode(coded: &[u8]) -> Vec<u8> {
            zstd::decode_all(coded).unwrap()
        }

        fn readable(coded: &[u8], length: usize) -> Vec<u8> {
            let mut out = vec![0; length];
            zstd::Decoder::new(coded).unwrap().read_exact(&mut out).unwrap();
            out
        }
    }

    #[test]
    fn every_piece_can_be_read_at_once() {
        let long = b"0123456789".repeat(5000);
        let mut rng = fastrand::Rng::with_seed(3);
        let noise: Vec<u8> = (0..200_000).map(|_| rng.u8(..)).collect();
        let pieces = [&b"a"[..], b"", &long, b"b", &noise, b""];
        let answer =
            |config, head: &[_], body: &[_]| answer::<Zstd>(config, &asks::<Zstd>(), 200, head, body);
        for config in [
            json!({}),
            json!({"comp_level": 1, "window_log": 10}),
            json!({"comp_level": 19, "window_log": 17}),
            json!({"comp_level": 6, "window_log": 23}),
        ] {
            let coded = answer(config, &[HTML], &pieces).unwrap();
            assert!(coded.len() < noise.len() + 10_000);
        }
        // The body is longer or shorter than announced: a filter has changed it.
        for length in ["20", "90000"] {
            let length = ("Content-Length", length);
            assert!(answer(json!({}), &[HTML, length], &[&long, b"x"]).is_some());
        }
        assert!(answer(json!({}), &[HTML], &[b""]).is_some());
    }

    /// RFC 9659: a frame whose window is above 8 MiB need not be read.
    #[test]
    fn the_window_is_bounded_and_no_larger_than_the_body() {
        let length = |length: &'static str| Some(("Content-Length", length));
        for (window_log, level, length, expected) in [
            (19, 3, None, 19),
            (23, 19, None, 23),
            (10, 19, None, 10),
            (19, 3, length("20"), 10),
            (19, 3, length("100000"), 17),
            (19, 3, length("131072"), 17),
            (19, 3, length("131073"), 18),
            (19, 3, length("9000000"), 19),
            (23, 19, length("18446744073709551615"), 23),
        ] {
            let config = json!({"window_log": window_log, "comp_level": level});
            let head: Vec<_> = [HTML].into_iter().chain(length).collect();
            let coded = answer::<Zstd>(config, &asks::<Zstd>(), 200, &head, &[b"a body"]).unwrap();
            assert_eq!(crate::decode::zstd_window(&coded), 1 << expected, "{window_log}, {length:?}");
        }
    }

    #[test]
    fn a_background_thread_is_for_what_takes_long() {
        let with = |level: u8, window: u8| json!({"comp_level": level, "window_log": window});
        // Parts of 16 KiB, where others wait.
        suite::a_background_thread_is_for_what_takes_long::<Zstd>(&[
            (with(3, 19), 64 << 10, [0, 0]),
            (with(6, 19), 1000, [0, 0]),
            (with(9, 19), 100_000, [1, 7]),
            (with(19, 14), 2000, [1, 1]),
            // The tables alone.
            (with(16, 20), 10, [1, 1]),
        ]);
    }

    #[test]
    fn responses_are_chosen() {
        suite::responses_are_chosen::<Zstd>();
    }

    #[test]
    fn a_second_one_finds_the_response_coded() {
        suite::a_second_one_finds_the_response_coded::<Zstd>();
    }

    #[test]
    fn without_memory_the_response_stays_plain() {
        suite::without_memory_the_response_stays_plain::<Zstd>();
    }
}
