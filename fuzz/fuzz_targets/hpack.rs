//! Field blocks of HTTP/2: no panic, within bounds, and what an encoder writes is read back.
#![no_main]

#[path = "../../wire/tests/support/hpack.rs"]
mod hpack;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Lines as fields, separated into blocks by empty ones; a number is a setting.
    let blocks: Vec<hpack::Block> = input
        .split(|byte| *byte == b'\n')
        .map(|block| {
            let pieces = block.split(|byte| *byte == b'\r');
            let (settings, fields): (Vec<_>, Vec<_>) = pieces.partition(|piece| piece.len() == 2);
            let setting = |piece: &&[u8]| u32::from(u16::from_be_bytes([piece[0], piece[1]]));
            let field = |piece: &&[u8]| {
                let (name, value) = piece.split_at(piece.iter().rposition(|byte| *byte == b':').unwrap_or(0));
                (name.to_vec(), value.to_vec())
            };
            (settings.iter().map(setting).collect(), fields.iter().map(field).collect())
        })
        .collect();
    for held in [hpack::blocks(input), hpack::round_trip(&blocks)] {
        if let Err(broken) = held {
            panic!("{broken}");
        }
    }
});
