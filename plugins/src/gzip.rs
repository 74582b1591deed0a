//! gzip: compresses responses.
//!
//! Settings, order and conditions as in APISIX 3.18, whose work is NGINX's gzip filter: the statuses
//! 200, 403 and 404, no second coding, no answer to a request that came through a proxy (Via), and
//! behind all filters of plugins. Each piece is given on as soon as it is compressed. The memory of a
//! compressor counts against the worker's budget for held bodies; without memory, the
//! response goes out as it is. A piece that takes longer than about a millisecond is compressed on a
//! background thread.

use std::io;

use flate2::{Compress, Compression, FlushCompress, Status};
use model::Invalid;
use sdk::chain::{LocalFuture, Phases};
use sdk::{Build, Chunk, Coder, Exchange, Method, Name, Plugin, Step, World};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::encoding::{self, Accepted, Choice, Compressor};

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
            x.encode_with(Box::new(Gzipped { level: self.level, work: None }));
            self.choice.add_vary(x);
        }
    }
}

/// One response's coder.
struct Gzipped {
    level: u32,
    work: Option<(Work, sdk::budget::Reservation)>,
}

/// Its compressor.
struct Work {
    level: u32,
    deflate: Compress,
    out: Vec<u8>,
}

impl Coder for Gzipped {
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
        let mut memory = sdk::budget::Reservation::default();
        if memory.resize(x.world().budget(), memory_for(bits)).is_err() {
            x.complain(Gzip::NAME, "the response is not compressed: the worker holds as much as it may");
            return false;
        }
        let deflate = Compress::new_gzip(Compression::new(self.level), bits);
        self.work = Some((Work { level: self.level, deflate, out: Vec::new() }, memory));
        encoding::set_coding(x, Gzip::NAME);
        true
    }

    fn encode(&mut self, chunk: &mut Chunk) -> Step {
        let Some((work, _)) = &mut self.work else { return Step::Next };
        if chunk.data.is_empty() && !chunk.last {
            return Step::Next;
        }
        if work.is_long(chunk.data.len()) {
            return Step::Wait;
        }
        work.code(chunk);
        if chunk.last {
            self.work = None;
        }
        Step::Next
    }

    fn wait<'a>(&'a mut self, world: &'a dyn World, chunk: &'a mut Chunk) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            if let Some((work, memory)) = self.work.take() {
                let coded = encoding::code_away(world, work, memory, chunk).await;
                self.work = Some(coded).filter(|_| !chunk.last);
            }
        })
    }
}

impl Work {
    fn compress(&mut self, mut rest: &[u8], flush: FlushCompress) -> io::Result<()> {
        loop {
            self.out.reserve(rest.len() / 2 + 64);
            let before = self.deflate.total_in();
            let status = self.deflate.compress_vec(rest, &mut self.out, flush);
            rest = &rest[(self.deflate.total_in() - before) as usize..];
            let has_room = self.out.len() < self.out.capacity();
            match status {
                Ok(Status::StreamEnd) => return Ok(()),
                // Where there was room left, everything that was to be given out is.
                Ok(_) if has_room && flush != FlushCompress::Finish => return Ok(()),
                Ok(_) => {}
                // Deflate cannot fail on a stream that is not over; the exchange ends rather than the body.
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Compressor for Work {
    fn nanoseconds(&self, length: usize) -> u64 {
        COSTS.get(self.level as usize).copied().unwrap_or(100).saturating_mul(length as u64)
    }

    fn put(&mut self, part: &[u8]) -> io::Result<()> {
        if part.is_empty() { Ok(()) } else { self.compress(part, FlushCompress::None) }
    }

    fn take(&mut self, last: bool, out: &mut Vec<u8>) -> io::Result<()> {
        self.compress(&[], if last { FlushCompress::Finish } else { FlushCompress::Sync })?;
        std::mem::swap(out, &mut self.out);
        self.out.clear();
        Ok(())
    }
}

/// Nanoseconds for a byte of JSON at each level.
const COSTS: [u64; 10] = [0, 3, 10, 10, 15, 25, 30, 35, 90, 90];

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

    use sdk::testing::{Probe, chunk, now, respond};

    use super::*;

    const HTML: (&str, &str) = ("Content-Type", "text/html");

    /// A piece through the coder, and through the background threads where it asks for them.
    fn code(x: &mut Exchange<'_>, chunk: &mut Chunk) {
        if matches!(x.engine_mut().code(chunk), Step::Wait) {
            now(x.engine_mut().wait_code(chunk));
        }
    }

    /// Whether the response was taken, its head, and its body as the client reads it.
    fn answer(
        config: Value,
        request: &[(&str, &str)],
        status: u16,
        head: &[(&str, &str)],
        body: &[&str],
    ) -> Option<String> {
        let mut probe = Probe::request("GET", "/hello", request);
        let stage: Gzip = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, status, head);
        stage.header_filter(&mut x);
        sdk::engine::begin_coding(&mut x);
        if !x.codes_body() {
            assert_eq!(
                x.response_header("Content-Encoding"),
                head.iter().find(|(name, _)| *name == "Content-Encoding").map(|(_, value)| value.as_bytes())
            );
            return None;
        }
        assert_eq!(x.response_header("Content-Encoding"), Some(&b"gzip"[..]));
        let mut out = Vec::new();
        let mut seen = String::new();
        for (index, piece) in body.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == body.len());
            code(&mut x, &mut chunk);
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

    #[test]
    fn a_background_thread_is_for_what_takes_long() {
        let text = b"0123456789".repeat(10_000);
        // Parts of 16 KiB, where others wait.
        for (level, piece, jobs) in
            [(1, 100_000, [0, 0]), (6, 32 << 10, [0, 0]), (6, 100_000, [1, 7]), (9, 16 << 10, [1, 1])]
        {
            for (short_turns, jobs) in [false, true].into_iter().zip(jobs) {
                let mut probe = Probe::request("GET", "/", ASKS);
                probe.world.short_turns.set(short_turns);
                let stage: Gzip = probe.stage(json!({"comp_level": level})).unwrap();
                let mut x = probe.exchange();
                respond(&mut x, 200, &[HTML]);
                stage.header_filter(&mut x);
                sdk::engine::begin_coding(&mut x);
                let before = x.world().budget().taken();
                let mut out = Vec::new();
                for last in [false, true] {
                    let mut chunk = chunk(&text[..piece], last);
                    code(&mut x, &mut chunk);
                    out.extend(chunk.data);
                    assert_eq!(x.world().budget().taken(), if last { 0 } else { before });
                }
                let mut plain = Vec::new();
                flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut plain).unwrap();
                assert!(plain == text[..piece].repeat(2));
                drop(x);
                assert_eq!(probe.world.jobs.get(), 2 * jobs, "{level}, {piece}, {short_turns}");
            }
        }
    }

    /// As nginx's ngx_http_gzip_filter_memory chooses it.
    #[test]
    fn a_short_body_has_a_small_window() {
        for (length, bits) in [
            (16_384 - 262, 15),
            (16_384 - 263, 14),
            (8_192 - 263, 13),
            (512 - 262, 10),
            (512 - 263, 9),
            (0, 9),
        ] {
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
        assert_eq!(
            answer(json!({}), ASKS, 200, &[HTML, ("Content-Length", "20")], &["all at once"]).unwrap(),
            "all at once"
        );
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
        code(&mut x, &mut chunk);
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
        code(&mut x, &mut last);
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
