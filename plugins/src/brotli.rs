//! brotli: compresses responses for clients that read `br`.
//!
//! Settings and order as in APISIX 3.18. Each piece is given on as soon as it is compressed. Stricter
//! than there in two points: a part of a body (206) is left as it is, as its range counts plain bytes,
//! and `br;q=0` is a no even beside `*`. The memory of a compressor counts against the worker's budget
//! for held bodies; without memory, the response goes out unchanged. A piece that takes longer
//! than about a millisecond is compressed on a background thread.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Chunk, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::encoding::filtered::{self, Filtered};
use crate::encoding::{Choice, Compressor};

/// The stage.
pub struct Brotli {
    choice: Choice,
    params: BrotliEncoderParams,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    choice: Choice,
    mode: u8,
    comp_level: i32,
    lgwin: i32,
    lgblock: i32,
}

/// One response's compressor.
pub struct Encoder {
    level: usize,
    /// Gone when the stream is over.
    writer: Option<CompressorWriter<Vec<u8>>>,
}

impl Plugin for Brotli {
    const NAME: &'static str = "brotli";
    const PRIORITY: i32 = 996;
    const PHASES: Phases = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let choice = Choice::properties();
        json!({
            "type": "object",
            "properties": {
                "types": choice["types"],
                "min_length": choice["min_length"],
                "mode": {"type": "integer", "minimum": 0, "maximum": 2, "default": 0},
                "comp_level": {"type": "integer", "minimum": 0, "maximum": 11, "default": 6},
                "lgwin": {
                    "type": "integer", "default": 19,
                    "enum": [0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24],
                },
                "lgblock": {
                    "type": "integer", "default": 0,
                    "enum": [0, 16, 17, 18, 19, 20, 21, 22, 23, 24],
                },
                "http_version": choice["http_version"],
                "vary": choice["vary"],
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Brotli, Invalid> {
        let params = BrotliEncoderParams {
            mode: match config.mode {
                1 => BrotliEncoderMode::BROTLI_MODE_TEXT,
                2 => BrotliEncoderMode::BROTLI_MODE_FONT,
                _ => BrotliEncoderMode::BROTLI_MODE_GENERIC,
            },
            quality: config.comp_level,
            // 0 is the library's smallest.
            lgwin: config.lgwin.max(10),
            lgblock: config.lgblock,
            // The library would choose its tables by the length of the first piece.
            size_hint: 1 << 16,
            ..BrotliEncoderParams::default()
        };
        Ok(Brotli { choice: config.choice, params })
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

impl Filtered for Brotli {
    const CODING: &'static str = "br";
    type Compressor = Encoder;

    fn choice(&self) -> &Choice {
        &self.choice
    }

    fn memory(&self, length: Option<u64>) -> usize {
        memory_for(&self.params(length))
    }

    fn compressor(&self, length: Option<u64>) -> io::Result<Encoder> {
        let params = self.params(length);
        let writer = Some(CompressorWriter::with_params(Vec::new(), BUFFER, &params));
        Ok(Encoder { level: usize::try_from(params.quality).unwrap_or_default(), writer })
    }
}

impl Brotli {
    /// The library's settings for a body of this length.
    fn params(&self, length: Option<u64>) -> BrotliEncoderParams {
        let mut params = self.params.clone();
        if let Some(length) = length {
            // A window that is larger than the body is of no use.
            let needed = length.saturating_add(16).checked_ilog2().map_or(10, |bits| bits as i32 + 1);
            params.lgwin = params.lgwin.min(needed.max(SMALLEST_CHEAP));
        }
        params
    }
}

impl Compressor for Encoder {
    fn nanoseconds(&self, length: usize) -> u64 {
        COSTS.get(self.level).copied().unwrap_or(COSTS[11]).saturating_mul(length as u64)
    }

    fn put(&mut self, part: &[u8]) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write_all(part))
    }

    fn take(&mut self, last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        if last {
            *out = self.writer.take().map(CompressorWriter::into_inner).unwrap_or_default();
        } else if let Some(writer) = &mut self.writer {
            writer.flush()?;
            std::mem::swap(out, writer.get_mut());
        }
        Ok(())
    }
}

/// Nanoseconds for a byte of JSON at each level.
const COSTS: [u64; 12] = [5, 15, 20, 20, 25, 50, 60, 100, 150, 300, 1300, 3000];

/// The most bytes the encoder gives out at once.
const BUFFER: usize = 4 << 10;

/// Bytes a compressor with these settings takes, rounded up: the ring of the input, the tables in which
/// it looks for repetitions, and what it makes of a block. A test holds it against what is really taken.
fn memory_for(params: &BrotliEncoderParams) -> usize {
    let window = 1usize << params.lgwin;
    let block = 1usize
        << match (params.lgblock, params.quality) {
            (_, 0 | 1) => params.lgwin,
            (_, 2 | 3) => 14,
            (0, 9..) => params.lgwin.clamp(16, 18),
            (0, _) => 16,
            (block, _) => block.clamp(16, 24),
        };
    let tables = match params.quality {
        0..=4 => 1 << 20,
        5..=9 if params.lgwin < SMALLEST_CHEAP => 33 << 20,
        quality @ 5..=6 => (4 << 14) << (quality - 1),
        quality @ 7..=9 => (4 << 15) << (quality - 1),
        _ => (1 << 20) + 8 * window,
    };
    let ring = if params.quality < 2 { 0 } else { 2 * window.max(block) + block };
    (1 << 20) + tables + ring + 16 * block
}

/// Below this window the library takes its largest tables for the qualities 5 to 9, so that a short
/// body gets no smaller one.
const SMALLEST_CHEAP: i32 = 17;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use sdk::testing::Probe;

    use super::*;
    use crate::encoding::suite::{self, Coding, HTML, answer, asks};

    impl Coding for Brotli {
        fn decode(coded: &[u8]) -> Vec<u8> {
            let mut out = Vec::new();
            brotli::BrotliDecompress(&mut &coded[..], &mut out).unwrap();
            out
        }

        fn readable(coded: &[u8], length: usize) -> Vec<u8> {
            let mut out = vec![0; length];
            brotli::Decompressor::new(coded, 4096).read_exact(&mut out).unwrap();
            out
        }
    }

    #[test]
    fn every_piece_can_be_read_at_once() {
        let long = b"0123456789".repeat(5000);
        let pieces = [&b"a"[..], b"", &long, b"b", b""];
        let answer =
            |config, head: &[_], body: &[_]| answer::<Brotli>(config, &asks::<Brotli>(), 200, head, body);
        for config in [
            json!({}),
            json!({"comp_level": 0, "lgwin": 0}),
            json!({"comp_level": 1, "lgwin": 10}),
            json!({"comp_level": 11, "mode": 1, "lgwin": 16, "lgblock": 16}),
            json!({"comp_level": 9, "mode": 2}),
        ] {
            assert!(answer(config, &[HTML], &pieces).is_some());
        }
        let length = ("Content-Length", "20");
        assert!(answer(json!({}), &[HTML, length], &[b"01234567890123456789"]).is_some());
        assert!(answer(json!({}), &[HTML], &[b""]).is_some());
    }

    #[test]
    fn a_background_thread_is_for_what_takes_long() {
        let level = |level: u8| json!({ "comp_level": level });
        // Parts of 16 KiB, where others wait.
        suite::a_background_thread_is_for_what_takes_long::<Brotli>(&[
            (level(4), 32 << 10, [0, 0]),
            (level(9), 1000, [0, 0]),
            (level(6), 100_000, [1, 7]),
            (level(11), 1000, [1, 1]),
        ]);
    }

    /// The compressor treats UTF-8 text, fonts and other content differently; its output does not show which mode it used.
    #[test]
    fn the_compressor_gets_the_settings() {
        for (mode, wanted) in [(0, 0), (1, 1), (2, 2)] {
            let config = json!({"mode": mode, "comp_level": 7, "lgblock": 18, "lgwin": 20});
            let params = Probe::get("/").stage::<Brotli>(config).unwrap().params;
            assert_eq!(
                (params.mode as i32, params.quality, params.lgblock, params.lgwin),
                (wanted, 7, 18, 20)
            );
            assert_eq!(params.size_hint, 1 << 16, "independent of the first piece");
        }
    }

    #[test]
    fn the_window_is_no_larger_than_the_body() {
        let length = |length: &'static str| Some(("Content-Length", length));
        for (lgwin, length, expected) in [
            (19, None, 19),
            (24, None, 24),
            (0, None, 10),
            (12, None, 12),
            (19, length("20"), 17),
            (19, length("100000"), 17),
            (19, length("131055"), 17),
            (19, length("131056"), 18),
            (19, length("200000"), 18),
            (19, length("9000000"), 19),
            (12, length("20"), 12),
            (24, length("18446744073709551615"), 24),
        ] {
            let config = json!({"lgwin": lgwin, "comp_level": 5, "min_length": 1});
            let head: Vec<_> = [HTML].into_iter().chain(length).collect();
            let coded = answer::<Brotli>(config, &asks::<Brotli>(), 200, &head, &[b"a body"]).unwrap();
            assert_eq!(crate::decode::window_bits(coded[0]), expected, "{lgwin}, {length:?}");
        }
    }

    #[test]
    fn responses_are_chosen() {
        suite::responses_are_chosen::<Brotli>();
    }

    #[test]
    fn a_second_one_finds_the_response_coded() {
        suite::a_second_one_finds_the_response_coded::<Brotli>();
    }

    /// `tests/encoders.rs` holds these sums against the memory that is taken; it leaves room for less.
    #[test]
    fn a_compressor_counts_as_all_its_parts() {
        // MiB for itself and KiB for its tables, its ring and what it makes of a block.
        for (quality, lgwin, own, parts) in [
            (0, 10, 1, [1024, 0, 16]),
            (1, 18, 1, [1024, 0, 4096]),
            (2, 18, 1, [1024, 528, 256]),
            (4, 18, 1, [1024, 576, 1024]),
            (6, 18, 1, [2048, 576, 1024]),
            (9, 16, 1, [33 << 10, 192, 1024]),
            (9, 18, 1, [32 << 10, 768, 4096]),
            (11, 16, 1, [1024 + 512, 192, 1024]),
        ] {
            let params = BrotliEncoderParams { quality, lgwin, lgblock: 0, ..BrotliEncoderParams::default() };
            assert_eq!(
                memory_for(&params),
                (own << 20) + (parts.iter().sum::<usize>() << 10),
                "{quality} {lgwin}"
            );
        }
    }

    #[test]
    fn without_memory_the_response_stays_plain() {
        suite::without_memory_the_response_stays_plain::<Brotli>();
    }
}
