//! gzip: compresses responses.
//!
//! Settings, order and conditions as in APISIX 3.18, whose work is NGINX's gzip filter: the statuses
//! 200, 403 and 404, no second coding, no answer to a request that came through a proxy (Via), and
//! behind all filters of plugins. Each piece is given on as soon as it is compressed. The memory of a
//! compressor counts against the worker's budget for held bodies; where there is none left, the
//! response goes out as it is.

use flate2::{Compress, Compression, FlushCompress, Status};
use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Chunk, Coder, Exchange, Method, Name, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::encoding::{self, Accepted, Choice};

/// The stage.
pub struct Gzip {
    choice: Choice,
    level: u32,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    choice: Choice,
    comp_level: u32,
}

impl Plugin for Gzip {
    const NAME: &'static str = "gzip";
    const PRIORITY: i32 = 995;
    const PHASES: Phases = Phases::HEADER_FILTER;

    type Config = Config;

    fn schema() -> Value {
        let choice = Choice::properties();
        json!({
            "type": "object",
            "properties": {
                "types": choice["types"],
                "min_length": choice["min_length"],
                "comp_level": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
                "http_version": choice["http_version"],
                "buffers": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer", "minimum": 1, "default": 32},
                        "size": {"type": "integer", "minimum": 1, "default": 4096},
                    },
                    "default": {"number": 32, "size": 4096},
                },
                "vary": choice["vary"],
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Gzip, Invalid> {
        Ok(Gzip { choice: config.choice, level: config.comp_level })
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        if self.choice.takes(x) {
            x.encode_with(Box::new(Compressor { level: self.level, work: None }));
            self.choice.tell_vary(x);
        }
    }
}

/// One response's compressor.
struct Compressor {
    level: u32,
    work: Option<Work>,
}

struct Work {
    deflate: Compress,
    out: Vec<u8>,
    /// What it counts as in the worker's budget.
    _memory: sdk::budget::Held,
}

impl Coder for Compressor {
    fn begin(&mut self, x: &mut Exchange<'_>) -> bool {
        let takes = matches!(x.status(), 200 | 403 | 404)
            && x.method() != Method::Head
            && encoding::accepted(x, Gzip::NAME) == Accepted::Named(true)
            && x.request().fields.get(Name::Via).is_none()
            && !encoding::is_coded(x);
        if !takes {
            return false;
        }
        let bits = window_bits(encoding::announced(x), self.level);
        let mut memory = sdk::budget::Held::default();
        if memory.resize(x.world().budget(), memory_for(bits)).is_err() {
            x.complain(Gzip::NAME, "the response is not compressed: the worker holds as much as it may");
            return false;
        }
        let deflate = Compress::new_gzip(Compression::new(self.level), bits);
        self.work = Some(Work { deflate, out: Vec::new(), _memory: memory });
        encoding::tell(x, Gzip::NAME);
        true
    }

    fn encode(&mut self, chunk: &mut Chunk) {
        let Some(work) = &mut self.work else { return };
        if chunk.data.is_empty() && !chunk.last {
            return;
        }
        let flush = if chunk.last { FlushCompress::Finish } else { FlushCompress::Sync };
        work.out.clear();
        let mut rest = &chunk.data[..];
        loop {
            work.out.reserve(rest.len() / 2 + 64);
            let before = work.deflate.total_in();
            let status = work.deflate.compress_vec(rest, &mut work.out, flush);
            rest = &rest[(work.deflate.total_in() - before) as usize..];
            let has_room = work.out.len() < work.out.capacity();
            match status {
                Ok(Status::StreamEnd) => break,
                // Where there was room left, everything that was to be given out is.
                Ok(_) if has_room && !chunk.last => break,
                Ok(_) => {}
                // Deflate cannot fail on a stream that is not over; the exchange ends rather than the body.
                Err(_) => {
                    chunk.refused = true;
                    break;
                }
            }
        }
        std::mem::swap(&mut chunk.data, &mut work.out);
        if chunk.last {
            self.work = None;
        }
    }
}

/// As NGINX has it, a short body gets a small window: it could use no more.
fn window_bits(announced: Option<u64>, level: u32) -> u8 {
    let mut bits = 15;
    while bits > 9 && announced.is_some_and(|length| length < (1 << (bits - 1)) - 262) {
        bits -= 1;
    }
    if level == 1 { bits.max(13) } else { bits }
}

/// Bytes a compressor with that window takes, rounded up: the window twice, with its chains, beside
/// tables of one size. A test holds it against what is really taken.
fn memory_for(bits: u8) -> usize {
    (288 << 10) + (5 << bits)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use sdk::testing::{Probe, chunk, respond};

    use super::*;

    const HTML: (&str, &str) = ("Content-Type", "text/html");

    /// Whether the response was taken, its head, and its body as the client reads it.
    fn answer(config: Value, request: &[(&str, &str)], status: u16, head: &[(&str, &str)], body: &[&str]) -> Option<String> {
        let mut probe = Probe::request("GET", "/hello", request);
        let stage: Gzip = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, status, head);
        stage.header_filter(&mut x);
        sdk::engine::begin_coding(&mut x);
        if !x.codes_body() {
            assert_eq!(x.response_header("Content-Encoding"), head.iter().find(|(name, _)| *name == "Content-Encoding").map(|(_, value)| value.as_bytes()));
            return None;
        }
        assert_eq!(x.response_header("Content-Encoding"), Some(&b"gzip"[..]));
        let mut out = Vec::new();
        let mut seen = String::new();
        for (index, piece) in body.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == body.len());
            x.engine_mut().code(&mut chunk);
            assert!(!chunk.refused);
            out.extend_from_slice(&chunk.data);
            // All that came so far can be read now.
            seen.push_str(piece);
            let mut reader = flate2::read::GzDecoder::new(&out[..]);
            let mut text = vec![0; seen.len()];
            reader.read_exact(&mut text).unwrap();
            assert!(text == seen.as_bytes());
        }
        let mut text = String::new();
        flate2::read::GzDecoder::new(&out[..]).read_to_string(&mut text).unwrap();
        Some(text)
    }

    const ASKS: &[(&str, &str)] = &[("Accept-Encoding", "gzip")];

    /// As nginx's ngx_http_gzip_filter_memory chooses it.
    #[test]
    fn a_short_body_has_a_small_window() {
        for (length, bits) in
            [(16_384 - 262, 15), (16_384 - 263, 14), (8_192 - 263, 13), (512 - 262, 10), (512 - 263, 9), (0, 9)]
        {
            assert_eq!(window_bits(Some(length), 6), bits, "{length}");
            assert_eq!(window_bits(Some(length), 1), bits.max(13), "{length}");
        }
        assert_eq!(window_bits(None, 6), 15);
    }

    #[test]
    fn every_piece_can_be_read_at_once() {
        let long = "0123456789".repeat(5000);
        // One that comes out longer than half of what it was.
        let mut rng = fastrand::Rng::with_seed(3);
        let noise: String = (0..3000).map(|_| rng.char('!'..'~')).collect();
        let pieces = ["a", "", &long, "b", &noise, ""];
        for level in [1, 6, 9] {
            let whole = answer(json!({"comp_level": level}), ASKS, 200, &[HTML], &pieces);
            assert!(whole.unwrap() == pieces.concat());
        }
        assert_eq!(answer(json!({}), ASKS, 200, &[HTML, ("Content-Length", "20")], &["all at once"]).unwrap(), "all at once");
        assert_eq!(answer(json!({}), ASKS, 200, &[HTML], &[""]).unwrap(), "");
    }

    #[test]
    fn noise_grows_by_little() {
        let mut rng = fastrand::Rng::with_seed(7);
        let noise: Vec<u8> = (0..200_000).map(|_| rng.u8(..)).collect();
        let mut probe = Probe::request("GET", "/", ASKS);
        let stage: Gzip = probe.stage(json!({"comp_level": 9})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[HTML]);
        stage.header_filter(&mut x);
        sdk::engine::begin_coding(&mut x);
        let mut chunk = chunk(&noise, true);
        x.engine_mut().code(&mut chunk);
        assert!(chunk.data.len() > 100_000 && chunk.data.len() < 201_000, "{}", chunk.data.len());
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&chunk.data[..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, noise);
    }

    #[test]
    fn responses_are_chosen_as_nginx_chooses() {
        let taken = |config: Value, request: &[(&str, &str)], status, head: &[(&str, &str)]| {
            answer(config, request, status, head, &["x"]).is_some()
        };
        for status in [200, 403, 404] {
            assert!(taken(json!({}), ASKS, status, &[HTML]), "{status}");
        }
        for status in [201, 206, 301, 500, 204, 304] {
            assert!(!taken(json!({}), ASKS, status, &[HTML]), "{status}");
        }
        assert!(!taken(json!({}), &[], 200, &[HTML]));
        assert!(!taken(json!({}), &[("Accept-Encoding", "gzip;q=0")], 200, &[HTML]));
        assert!(!taken(json!({}), &[("Accept-Encoding", "*")], 200, &[HTML]));
        assert!(!taken(json!({}), &[("Accept-Encoding", "gzip"), ("Via", "1.1 a")], 200, &[HTML]));
        assert!(!taken(json!({}), ASKS, 200, &[HTML, ("Content-Encoding", "br")]));
        assert!(!taken(json!({}), ASKS, 200, &[]));
        assert!(taken(json!({}), ASKS, 200, &[("Content-Type", "text/html; charset=utf-8")]));
        assert!(!taken(json!({}), ASKS, 200, &[("Content-Type", "text/plain")]));
        assert!(!taken(json!({"types": ["text/xml"]}), ASKS, 200, &[HTML]));
        assert!(taken(json!({"types": "*"}), ASKS, 200, &[("Content-Type", "video/3gpp")]));
        assert!(!taken(json!({}), ASKS, 200, &[HTML, ("Content-Length", "19")]));
        assert!(taken(json!({}), ASKS, 200, &[HTML, ("Content-Length", "20")]));
        assert!(!taken(json!({"min_length": 21}), ASKS, 200, &[HTML, ("Content-Length", "20")]));
    }

    #[test]
    fn old_clients_only_where_the_setting_says_so() {
        for (version, expected) in [(1.1, false), (1.0, true)] {
            let mut probe = Probe::request("GET", "/", ASKS);
            probe.messages.request.version = sdk::Version::Http10;
            let stage: Gzip = probe.stage(json!({"http_version": version})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[HTML]);
            stage.header_filter(&mut x);
            assert_eq!(x.codes_body(), expected);
        }
    }

    #[test]
    fn heads_get_no_coding() {
        let mut probe = Probe::request("HEAD", "/", ASKS);
        let stage: Gzip = probe.stage(json!({"vary": true})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[HTML, ("Vary", "Origin")]);
        stage.header_filter(&mut x);
        sdk::engine::begin_coding(&mut x);
        assert!(!x.codes_body());
        let vary: Vec<_> = x.response().fields.all(b"Vary").collect();
        assert_eq!(vary, [&b"Origin"[..], b"Accept-Encoding"]);
    }

    #[test]
    fn without_memory_the_response_stays_plain() {
        let mut probe = Probe::request("GET", "/", ASKS);
        probe.world.budget = sdk::budget::Budget::new(memory_for(15) * 2 - 1);
        let stage: Gzip = probe.stage(json!({})).unwrap();
        let mut second = sdk::testing::messages("GET", "/", ASKS);
        let mut x = Exchange::new(&mut probe.messages, &probe.client, &probe.consumers, &probe.world);
        let mut y = Exchange::new(&mut second, &probe.client, &probe.consumers, &probe.world);
        for x in [&mut x, &mut y] {
            respond(x, 200, &[HTML]);
            stage.header_filter(x);
            sdk::engine::begin_coding(x);
        }
        assert!(x.codes_body() && !y.codes_body());
        assert_eq!(y.response_header("Content-Encoding"), None);
        assert_eq!(probe.world.complaints.borrow().len(), 1);
        let mut last = chunk(b"x", true);
        x.engine_mut().code(&mut last);
        assert_eq!(probe.world.budget.taken(), 0);
    }

    #[test]
    fn short_bodies_get_small_windows() {
        assert_eq!(window_bits(None, 6), 15);
        assert_eq!(window_bits(Some(1 << 20), 6), 15);
        assert_eq!(window_bits(Some(1000), 6), 11);
        assert_eq!(window_bits(Some(1), 6), 9);
        assert_eq!(window_bits(Some(1), 1), 13);
    }
}
