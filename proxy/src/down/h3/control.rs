//! Streams that go one way (RFC 9114 section 6.2): the client's settings, and the QPACK streams, which change
//! nothing, as there is no dynamic table.

use std::future::poll_fn;
use std::rc::Rc;

use quinn::RecvStream;
use wire::h3::{self, code, frame, setting};

use super::frames::{Broken, Frames};
use super::{Shared, spawn};

/// The longest SETTINGS, GOAWAY and the like that is read.
const LONGEST: u64 = 4 << 10;

/// Serves one as long as it lasts.
pub(super) fn begin(shared: &Rc<Shared>, stream: RecvStream) {
    let shared = shared.clone();
    spawn(async move {
        let mut frames = Frames::new(stream, shared.clone());
        match serve(&shared, &mut frames).await {
            Ok(()) => {}
            Err(Broken::Connection(code) | Broken::Stream(code)) => shared.fail(code),
            // Those that are read on are to last as long as the connection.
            Err(Broken::Gone) => shared.fail(code::CLOSED_CRITICAL_STREAM),
        }
    });
}

async fn serve(shared: &Shared, frames: &mut Frames) -> Result<(), Broken> {
    let kind = match poll_fn(|cx| frames.poll_number(cx)).await {
        Ok(Some(kind)) => kind,
        // It ended before it was known what it is for, which it may.
        _ => {
            shared.spend(1);
            return Ok(());
        }
    };
    let once = |kind: u64| {
        let seen = shared.seen.replace(shared.seen.get() | 1 << kind);
        if seen & 1 << kind == 0 { Ok(()) } else { Err(Broken::Connection(code::STREAM_CREATION_ERROR)) }
    };
    match kind {
        h3::stream::CONTROL => {
            once(kind)?;
            control(shared, frames).await
        }
        h3::stream::ENCODER | h3::stream::DECODER => {
            once(kind)?;
            instructions(frames, kind).await
        }
        // Only servers push.
        h3::stream::PUSH => Err(Broken::Connection(code::STREAM_CREATION_ERROR)),
        _ => {
            shared.spend(1);
            frames.stop(code::STREAM_CREATION_ERROR);
            Ok(())
        }
    }
}

async fn control(shared: &Shared, frames: &mut Frames) -> Result<(), Broken> {
    let mut first = true;
    let mut text = Vec::new();
    // The greatest push that MAX_PUSH_ID allows, and the one from which on GOAWAY stops them.
    let (mut allowed, mut stop) = (0, h3::MOST);
    loop {
        let Some((kind, length)) = poll_fn(|cx| frames.poll_head(cx)).await? else {
            return Err(Broken::Connection(code::CLOSED_CRITICAL_STREAM));
        };
        if std::mem::take(&mut first) != (kind == frame::SETTINGS) {
            let known = kind == frame::SETTINGS;
            let code = if known { code::FRAME_UNEXPECTED } else { code::MISSING_SETTINGS };
            return Err(Broken::Connection(code));
        }
        shared.spend(1 + (length.min(1 << 30) >> 8) as i64);
        match kind {
            frame::SETTINGS | frame::GOAWAY | frame::CANCEL_PUSH | frame::MAX_PUSH_ID if length > LONGEST => {
                return Err(Broken::Connection(code::EXCESSIVE_LOAD));
            }
            frame::SETTINGS => {
                text.clear();
                poll_fn(|cx| frames.poll_rest(&mut text, cx)).await?;
                settings(&text)?;
            }
            frame::GOAWAY | frame::CANCEL_PUSH | frame::MAX_PUSH_ID => {
                text.clear();
                poll_fn(|cx| frames.poll_rest(&mut text, cx)).await?;
                let id = match h3::number(&text) {
                    Some((id, length)) if length == text.len() => id,
                    _ => return Err(Broken::Connection(code::FRAME_ERROR)),
                };
                // It takes nothing back (RFC 9114 sections 5.2 and 7.2.7).
                let fits = match kind {
                    frame::GOAWAY => id <= std::mem::replace(&mut stop, id),
                    frame::MAX_PUSH_ID => id >= std::mem::replace(&mut allowed, id),
                    // There are no pushes that it could be about.
                    _ => false,
                };
                if !fits {
                    return Err(Broken::Connection(code::ID_ERROR));
                }
            }
            frame::DATA | frame::HEADERS | frame::PUSH_PROMISE => {
                return Err(Broken::Connection(code::FRAME_UNEXPECTED));
            }
            kind if frame::is_of_http2(kind) => return Err(Broken::Connection(code::FRAME_UNEXPECTED)),
            _ => poll_fn(|cx| frames.poll_skip(cx)).await?,
        }
    }
}

/// Nothing is taken from a client's settings: lists of fields are written without a table.
fn settings(mut text: &[u8]) -> Result<(), Broken> {
    let mut seen = [u64::MAX; 32];
    let mut count = 0;
    while !text.is_empty() {
        let (id, _, length) = h3::frame_head(text).ok_or(Broken::Connection(code::FRAME_ERROR))?;
        text = &text[length..];
        if setting::is_of_http2(id) || seen[..count].contains(&id) {
            return Err(Broken::Connection(code::SETTINGS_ERROR));
        }
        if count < seen.len() {
            seen[count] = id;
            count += 1;
        }
    }
    Ok(())
}

/// Instructions of QPACK (RFC 9204 section 4). There is no table, so the client has nothing to say but that
/// it wants none, or that it did not look at a list.
async fn instructions(frames: &mut Frames, kind: u64) -> Result<(), Broken> {
    let refused = match kind {
        h3::stream::ENCODER => code::QPACK_ENCODER_STREAM_ERROR,
        _ => code::QPACK_DECODER_STREAM_ERROR,
    };
    // Within a number that goes on.
    let mut within = false;
    loop {
        if !poll_fn(|cx| frames.poll_fill(cx)).await? {
            return Err(Broken::Connection(code::CLOSED_CRITICAL_STREAM));
        }
        for byte in frames.take_all() {
            match byte {
                _ if within => within = byte & 0x80 != 0,
                // A table of size 0.
                0x20 if kind == h3::stream::ENCODER => {}
                // Stream cancellation.
                0x40..0x80 if kind == h3::stream::DECODER => within = byte == 0x7f,
                _ => return Err(Broken::Connection(refused)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_and_each_comes_once() {
        let refused = |text: &[u8]| settings(text).unwrap_err();
        assert_eq!(settings(&[]), Ok(()));
        assert_eq!(settings(&[6, 0x44, 0, 1, 0, 0x21, 7]), Ok(()));
        assert_eq!(refused(&[6, 0, 6, 0]), Broken::Connection(code::SETTINGS_ERROR));
        assert_eq!(refused(&[2, 0]), Broken::Connection(code::SETTINGS_ERROR));
        assert_eq!(refused(&[6]), Broken::Connection(code::FRAME_ERROR));
        assert_eq!(refused(&[6, 0x44]), Broken::Connection(code::FRAME_ERROR));
        let many: Vec<u8> = (6..0x40).flat_map(|id| [id, 0]).collect();
        assert_eq!(settings(&many), Ok(()), "there may be many");
    }
}
