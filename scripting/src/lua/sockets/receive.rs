//! Receiving: a number of bytes, a line, all, or up to a pattern.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use sdk::chain::LocalFuture;
use sdk::connection::AsyncRead;

use super::input::Input;
use super::{Busy, Patience, Results, Socket, failed, text_of};
use crate::lua::machine::Out;

/// Bytes that are read at once.
const CHUNK: usize = 8 << 10;

const TOO_MUCH: &str = "too many bytes are buffered (sluice.lua.max_memory)";

/// The bytes that a call receives.
#[derive(Debug)]
pub(in crate::lua) enum Wanted {
    Size(usize),
    /// Up to a line feed, without carriage returns.
    Line,
    /// Up to the end.
    All,
    /// The first bytes that come, at most this number.
    Any(usize),
    /// Up to a pattern, at most `size` bytes of it.
    Until {
        pattern: Vec<u8>,
        inclusive: bool,
        size: Option<usize>,
    },
}

/// Receives. The results are a text and whether the pattern was reached, or nil, an error, and the bytes that came.
pub(in crate::lua) fn receive(
    socket: Rc<Socket>,
    wanted: Wanted,
    patience: Patience,
) -> LocalFuture<'static, Results> {
    match Busy::reading(&socket) {
        Some(busy) => Box::pin(read(busy, wanted, patience)),
        None => Box::pin(async { Ok(failed("socket busy reading")) }),
    }
}

async fn read(busy: Busy, wanted: Wanted, mut patience: Patience) -> Results {
    let socket = &busy.socket;
    // Bytes that hold no end of a line or pattern.
    let mut scanned = 0;
    loop {
        if socket.open.borrow().is_none() {
            return Ok(failed("closed"));
        }
        if let Some((text, reached)) = take(&wanted, &mut socket.input.borrow_mut(), &mut scanned) {
            return Ok(vec![Out::Text(text), Out::Nil, Out::Nil, Out::Bool(reached)]);
        }
        let error = match fill(socket, &mut patience).await {
            Ok(1..) => continue,
            Ok(0) => "closed",
            Err(error) => error,
        };
        let n = socket.input.borrow().bytes().len();
        let rest = match error {
            TOO_MUCH => Vec::new(),
            _ => socket.input.borrow_mut().take(n),
        };
        if error != "timeout" {
            socket.close();
        }
        return Ok(match wanted {
            Wanted::All if error == "closed" => vec![Out::Text(rest)],
            _ => vec![Out::Nil, Out::Text(error.as_bytes().to_vec()), Out::Text(rest)],
        });
    }
}

/// Reads some bytes; 0 is the end.
async fn fill(socket: &Socket, patience: &mut Patience) -> Result<usize, &'static str> {
    let read = poll_fn(|cx| {
        let open = &mut *socket.open.borrow_mut();
        // Closed by another light thread.
        let Some(open) = open else { return Poll::Ready(Ok(0)) };
        let mut chunk = [0; CHUNK];
        match Pin::new(&mut open.connection).poll_read(cx, &mut chunk) {
            Poll::Ready(Ok(n)) if socket.input.borrow_mut().add(&chunk[..n]) => Poll::Ready(Ok(n)),
            Poll::Ready(Ok(_)) => Poll::Ready(Err(TOO_MUCH)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(text_of(&error))),
            Poll::Pending => patience.sleep.as_mut().poll(cx).map(|()| Err("timeout")),
        }
    });
    let n = read.await?;
    patience.progressed().await;
    Ok(n)
}

/// Takes the wanted bytes, if they are there, and says whether the pattern follows them.
fn take(wanted: &Wanted, input: &mut Input, scanned: &mut usize) -> Option<(Vec<u8>, bool)> {
    let bytes = input.bytes();
    match wanted {
        Wanted::All => None,
        Wanted::Size(size) => (bytes.len() >= *size).then(|| (input.take(*size), false)),
        Wanted::Any(most) => (!bytes.is_empty()).then(|| (input.take(*most), false)),
        Wanted::Line => {
            let Some(end) = bytes[*scanned..].iter().position(|byte| *byte == b'\n') else {
                *scanned = bytes.len();
                return None;
            };
            let mut line = input.take(*scanned + end + 1);
            line.retain(|byte| !matches!(byte, b'\r' | b'\n'));
            Some((line, false))
        }
        Wanted::Until { pattern, inclusive, size } => {
            let most = size.unwrap_or(usize::MAX);
            let from = (*scanned).min(bytes.len());
            let found = bytes[from..].windows(pattern.len()).position(|part| part == pattern.as_slice());
            if let Some(at) = found.map(|at| at + from).filter(|at| *at <= most) {
                let mut text = input.take(at + pattern.len());
                if !inclusive {
                    text.truncate(at);
                }
                return Some((text, true));
            }
            // Bytes at the end that may begin the pattern.
            let may_begin = |n: &usize| bytes.ends_with(&pattern[..*n]);
            let begun = (1..pattern.len().min(bytes.len() + 1)).rev().find(may_begin).unwrap_or(0);
            let safe = if found.is_some() { bytes.len() } else { bytes.len() - begun };
            *scanned = (bytes.len() + 1).saturating_sub(pattern.len());
            (safe >= most).then(|| (input.take(most), false))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(pattern: &str, inclusive: bool, size: Option<usize>) -> Wanted {
        Wanted::Until { pattern: pattern.into(), inclusive, size }
    }

    /// All that is taken from pieces that come one after the other.
    fn taken(wanted: &Wanted, pieces: &[&str]) -> Vec<String> {
        let mut input = Input::new(&Rc::default(), 1 << 20);
        let (mut scanned, mut all) = (0, Vec::new());
        for piece in pieces {
            assert!(input.add(piece.as_bytes()));
            while let Some((text, reached)) = take(wanted, &mut input, &mut scanned) {
                scanned = 0;
                let end = if reached { "|" } else { "" };
                all.push(format!("{}{end}", String::from_utf8_lossy(&text)));
            }
        }
        all
    }

    #[test]
    fn texts_are_taken_whole_whatever_their_pieces() {
        for (wanted, text, expected) in [
            (Wanted::Line, "a\r\nbb\n\r\ncc", &["a", "bb", ""][..]),
            (Wanted::Size(3), "abcdefg", &["abc", "def"]),
            (until("--", false, None), "a-b--c---d", &["a-b|", "c|"]),
            (until("--", true, None), "a-b--c---d", &["a-b--|", "c--|"]),
            (until("aab", false, None), "aaab-aab", &["a|", "-|"]),
            (
                until("--abcedhb", false, Some(4)),
                "hello, world ----abcedhb",
                &["hell", "o, w", "orld", " --|"],
            ),
        ] {
            let whole = taken(&wanted, &[text]);
            assert_eq!(whole, expected, "{wanted:?}");
            for at in 1..text.len() {
                assert_eq!(taken(&wanted, &[&text[..at], &text[at..]]), expected, "{wanted:?} {at}");
            }
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            assert_eq!(taken(&wanted, &single), expected, "{wanted:?} byte by byte");
        }
        assert_eq!(taken(&Wanted::Any(2), &["abc", "d"]), ["ab", "c", "d"]);
        assert_eq!(taken(&until("--", false, Some(4)), &["abcd--ef--"]), ["abcd|", "ef|"]);
        assert_eq!(taken(&until("--", false, Some(2)), &["abcd--"]), ["ab", "cd|"]);
        assert_eq!(taken(&until("--", false, Some(2)), &["abcd", "--"]), ["ab", "cd", "|"]);
    }

    #[test]
    fn bytes_that_cannot_begin_the_pattern_are_not_held_back() {
        assert_eq!(taken(&until("--", false, Some(3)), &["abc"]), ["abc"]);
        assert_eq!(taken(&until("--", false, Some(3)), &["ab-"]), [""; 0]);
        assert_eq!(taken(&until("--", false, Some(3)), &["ab-", "c"]), ["ab-"]);
    }
}
