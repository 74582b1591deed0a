//! Fields and numbers of HTTP/3, frames of WebSocket: no panic, within bounds, one reading.
#![no_main]

#[path = "../../wire/tests/support/frames.rs"]
mod frames;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let cut = input.first().map_or(1, |byte| usize::from(*byte));
    for held in [frames::fields(input), frames::numbers(input), frames::websocket(input, cut)] {
        if let Err(broken) = held {
            panic!("{broken}");
        }
    }
});
