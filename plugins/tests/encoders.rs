//! The memory that compressors take from a worker's budget covers what they use, and is not much more.
//!
//! Alone in its process, as all of its memory is counted.
#![expect(clippy::disallowed_methods, reason = "this test does the engine's part")]
#![allow(clippy::unwrap_used, reason = "a test")]

use plugins::{brotli::Brotli, gzip::Gzip, zstd::Zstd};
use sdk::testing::{Probe, chunk, now, respond};
use sdk::{Plugin, Step};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Bytes taken while a body is compressed in pieces of this length, and what they count as.
fn taken<P: Plugin>(config: &Value, head: &[(&str, &str)], body: &[u8], piece: usize) -> (usize, usize) {
    let mut probe = Probe::request("GET", "/", &[("Accept-Encoding", "gzip, br, zstd")]);
    let stage: P = probe.stage(config.clone()).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, head);
    let before = dhat::HeapStats::get().curr_bytes;
    stage.header_filter(&mut x);
    sdk::engine::begin_coding(&mut x);
    let counted = x.world().budget().taken();
    let mut most = 0;
    for piece in body.chunks(piece) {
        let mut chunk = chunk(piece, false);
        // gzip keeps the piece until its coded form is passed on; brotli, and a job, free it before.
        let mut kept = if P::NAME == "gzip" { piece.len() } else { 0 };
        if x.codes_body() {
            if matches!(x.engine_mut().code(&mut chunk), Step::Wait) {
                now(x.engine_mut().wait_code(&mut chunk));
                kept = 0;
            }
        } else if matches!(stage.body_action(&mut x, &mut chunk), Step::Wait) {
            now(stage.wait_body(&mut x, &mut chunk));
        }
        assert!(!chunk.refused);
        // The chunk for the body is not the compressor's memory.
        let now = dhat::HeapStats::get().curr_bytes;
        most = most.max(now.saturating_sub(before + chunk.data.capacity() + kept));
    }
    (most, counted)
}

#[test]
fn memory_is_counted_in_full() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut rng = fastrand::Rng::with_seed(11);
    let words: Vec<String> =
        (0..4000).map(|_| (0..rng.usize(2..9)).map(|_| rng.alphabetic()).collect()).collect();
    let mut text = Vec::new();
    while text.len() < 256 << 10 {
        text.extend_from_slice(words[rng.usize(..words.len())].as_bytes());
        text.push(b' ');
    }
    let noise: Vec<u8> = (0..128 << 10).map(|_| rng.u8(..)).collect();
    let html = ("Content-Type", "text/html");
    let short = [html, ("Content-Length", "600")];
    let mut problems = Vec::new();
    let mut hold = |what: String, (most, counted): (usize, usize), over: f64| {
        assert!(most > 10_000, "{what} takes {most} bytes: it does nothing");
        if most > counted || counted as f64 > most as f64 * over {
            problems.push(format!("{what}: takes {most}, counts as {counted}"));
        }
    };
    for level in [1, 5, 9] {
        let config = json!({"comp_level": level});
        hold(format!("gzip {level}"), taken::<Gzip>(&config, &[html], &text, 16 << 10), 1.3);
        hold(format!("gzip {level} whole"), taken::<Gzip>(&config, &[html], &text, text.len()), 1.3);
        hold(format!("gzip {level} noise"), taken::<Gzip>(&config, &[html], &noise, 16 << 10), 1.3);
        hold(format!("gzip {level} short"), taken::<Gzip>(&config, &short, &text[..600], 600), 1.3);
    }
    let mut brotli = |level: i32, lgwin: i32, lgblock: i32| {
        let config = json!({"comp_level": level, "lgwin": lgwin, "lgblock": lgblock});
        // The tables are most of it. Levels without tables are counted as if they had them; a short body fills none.
        let over = match level {
            0 | 1 => 200.0,
            5..=9 => 1.2,
            _ => 5.0,
        };
        hold(
            format!("brotli {config}"),
            taken::<Brotli>(&config, &[html], &text[..64 << 10], 16 << 10),
            f64::MAX,
        );
        hold(format!("brotli {config} whole"), taken::<Brotli>(&config, &[html], &text, text.len()), over);
        hold(
            format!("brotli {config} noise"),
            taken::<Brotli>(&config, &[html], &noise, noise.len()),
            f64::MAX,
        );
        hold(format!("brotli {config} short"), taken::<Brotli>(&config, &short, &text[..600], 600), f64::MAX);
    };
    for level in 0..=9 {
        for lgwin in [0, 17] {
            brotli(level, lgwin, 0);
        }
    }
    for (level, lgwin, lgblock) in
        [(6, 19, 0), (6, 22, 0), (9, 16, 18), (10, 18, 0), (11, 10, 0), (11, 16, 20)]
    {
        brotli(level, lgwin, lgblock);
    }
    for level in 1..=19 {
        for window in [10, 14, 18, 19, 23] {
            let config = json!({"comp_level": level, "window_log": window});
            let taken = taken::<Zstd>(&config, &[html], &noise[..64 << 10], 64 << 10);
            hold(format!("zstd {config}"), taken, 2.5);
        }
    }
    let config = json!({});
    hold("zstd".to_owned(), taken::<Zstd>(&config, &[html], &text, 16 << 10), 1.5);
    hold("zstd short".to_owned(), taken::<Zstd>(&config, &short, &text[..600], 600), 3.0);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
