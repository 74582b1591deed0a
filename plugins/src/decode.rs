//! Decoding of bodies that a server has compressed, in parts that a worker or the background pool has time for.

use std::io::{self, BufRead, Cursor, ErrorKind, Read};

use flate2::read::MultiGzDecoder;
use sdk::Exchange;
use sdk::offload::Until;

/// A content coding (RFC 9110 section 8.4.1) that can be taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Brotli,
    Zstd,
}

/// The coding of a response, as its head names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coded {
    Plain,
    As(Coding),
    /// It has several codings, or one that is not known here.
    Unknown,
}

impl Coded {
    /// As the response's head says.
    pub(crate) fn of(x: &Exchange<'_>) -> Coded {
        let mut codings = x.response().fields.all(b"Content-Encoding");
        let Some(coding) = codings.next() else { return Coded::Plain };
        let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
        match codings.next() {
            None if is("gzip") || is("x-gzip") => Coded::As(Coding::Gzip),
            None if is("br") => Coded::As(Coding::Brotli),
            None if is("zstd") => Coded::As(Coding::Zstd),
            _ => Coded::Unknown,
        }
    }
}

/// A body on its way from coded to plain.
pub(crate) struct Decoding {
    from: Box<dyn Read + Send>,
    /// Bytes of the decoder and of the coded body.
    own: usize,
    plain: Vec<u8>,
    /// Bytes of the plain body at most; the rest is left out.
    most: usize,
    /// The end of the coded body was left out.
    cut: bool,
}

/// How far [`Decoding::go_on`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoded {
    All,
    /// All that may be, which is not all there is.
    Cut,
    Paused,
    /// There is no room: it needs `least` bytes in all to go on; `wanted` spare the body from being moved often.
    Full {
        least: usize,
        wanted: usize,
    },
    /// The body is not what its coding says.
    Broken,
}

/// Bytes that are decoded at a time.
const PIECE: usize = 32 << 10;
/// Steps for a byte.
const STEPS: u64 = 8;

impl Decoding {
    pub(crate) fn new(coding: Coding, body: Vec<u8>, most: usize, cut: bool) -> Decoding {
        let held = body.capacity();
        let (window, from): (usize, Box<dyn Read + Send>) = match coding {
            Coding::Gzip => (64 << 10, Box::new(MultiGzDecoder::new(Cursor::new(body)))),
            Coding::Brotli => {
                let window = body.first().map_or(0, |&first| 1 << window_bits(first));
                (window + BROTLI, Box::new(brotli::Decompressor::new(Cursor::new(body), 4096)))
            }
            Coding::Zstd => {
                let window = zstd_window(&body);
                (window + ZSTD, zstd(Cursor::new(body), window))
            }
        };
        Decoding { from, own: held + window, plain: Vec::new(), most, cut }
    }

    /// Goes on decoding. All of it together may take `room` bytes.
    pub(crate) fn go_on(&mut self, room: usize, until: &mut Until<'_>) -> Decoded {
        while self.plain.len() < self.most {
            if !until.allows(PIECE as u64 * STEPS) {
                return Decoded::Paused;
            }
            if let Err(full) = self.grow(room) {
                return full;
            }
            let length = self.plain.len();
            self.plain.resize(self.plain.capacity().min(length + PIECE).min(self.most), 0);
            let read = self.from.read(&mut self.plain[length..]);
            self.plain.truncate(length + read.as_ref().unwrap_or(&0));
            until.spend((1 + self.plain.len() - length) as u64 * STEPS);
            match read {
                Ok(0) => return if self.cut { Decoded::Cut } else { Decoded::All },
                Ok(_) if until.is_over() => return Decoded::Paused,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if self.cut => return Decoded::Cut,
                Err(_) => return Decoded::Broken,
            }
        }
        match self.from.read(&mut [0]) {
            Ok(0) => Decoded::All,
            Ok(_) => Decoded::Cut,
            Err(_) if self.cut => Decoded::Cut,
            Err(_) => Decoded::Broken,
        }
    }

    /// The plain body, as far as it is decoded.
    pub(crate) fn into_plain(self) -> Vec<u8> {
        self.plain
    }

    /// Makes room for a piece.
    fn grow(&mut self, room: usize) -> Result<(), Decoded> {
        let (length, capacity) = (self.plain.len(), self.plain.capacity());
        if length < capacity {
            return Ok(());
        }
        let least = (length + PIECE).min(self.most);
        let wanted = capacity.saturating_mul(2).min(self.most).max(least);
        if self.own + least > room {
            return Err(Decoded::Full { least: self.own + least, wanted: self.own + wanted });
        }
        self.plain.reserve_exact(wanted.min(room - self.own) - length);
        Ok(())
    }
}

/// Bytes of a brotli decoder beside its window: tables of codes, and the parts of a block.
const BROTLI: usize = 1 << 20;

/// Bytes of a zstd decoder beside its window: tables, and blocks before and after decoding.
const ZSTD: usize = 512 << 10;

/// RFC 9659: a window of more bytes need not be supported.
const MOST_WINDOW: u64 = 8 << 20;

/// A decoder of frames whose windows are no larger.
pub(crate) fn zstd<'b>(body: impl BufRead + Send + 'b, window: usize) -> Box<dyn Read + Send + 'b> {
    let decoder = zstd::Decoder::with_buffer(body).and_then(|mut decoder| {
        decoder.window_log_max(window.next_power_of_two().ilog2())?;
        Ok(decoder)
    });
    match decoder {
        Ok(decoder) => Box::new(decoder),
        Err(error) => Box::new(Failed(error.kind())),
    }
}

/// A decoder that could not be made.
struct Failed(ErrorKind);

impl Read for Failed {
    fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

/// The window of the first frame (RFC 8878 section 3.1.1.1), or the largest where the frame is of another kind.
pub(crate) fn zstd_window(body: &[u8]) -> usize {
    let window = || {
        let (&flags, rest) = body.strip_prefix(b"\x28\xb5\x2f\xfd")?.split_first()?;
        if flags & 0x20 == 0 {
            let &size = rest.first()?;
            let base = 1 << (10 + (size >> 3));
            return Some(base + base / 8 * u64::from(size & 7));
        }
        // The frame is its window: its length follows the identifier of a dictionary.
        let at = [0, 1, 2, 4][usize::from(flags & 3)];
        let field = rest.get(at..at + (1 << (flags >> 6)))?;
        let length = field.iter().rev().fold(0, |length, &byte| length << 8 | u64::from(byte));
        Some(length + if field.len() == 2 { 256 } else { 0 })
    };
    window().unwrap_or(MOST_WINDOW).clamp(1 << 10, MOST_WINDOW) as usize
}

/// RFC 7932 section 9.1: the stream begins with the size of its window, of which this is the exponent.
pub(crate) fn window_bits(first: u8) -> u32 {
    match first {
        byte if byte & 1 == 0 => 16,
        byte if byte & 0xf == 1 => match byte >> 4 & 7 {
            0 => 17,
            bits => u32::from(bits) + 8,
        },
        byte => u32::from(byte >> 1 & 7) + 17,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use sdk::offload::TimeSlice;
    use sdk::testing::{Probe, respond};

    use super::*;

    pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        coder.write_all(plain).unwrap();
        coder.finish().unwrap()
    }

    pub(crate) fn brotli(plain: &[u8]) -> Vec<u8> {
        let mut coder = brotli::CompressorWriter::new(Vec::new(), 4096, 4, 16);
        coder.write_all(plain).unwrap();
        coder.into_inner()
    }

    /// How it ends, and the plain body, where it may take this much room.
    fn decode(mut decoding: Decoding, most: usize, pauses: bool) -> (Decoded, Vec<u8>) {
        let mut room = 0;
        loop {
            match decoding.go_on(room, &mut Until::TimeSlice(&TimeSlice::new(&|| pauses))) {
                Decoded::Paused => assert!(pauses),
                Decoded::Full { least, wanted } if least <= most => {
                    assert!(room < least && least <= wanted);
                    room = wanted.min(most);
                }
                end => {
                    assert!(decoding.plain.capacity() <= room, "{room}");
                    return (end, decoding.into_plain());
                }
            }
        }
    }

    #[test]
    fn a_head_names_its_coding() {
        for (fields, coded) in [
            (&[][..], Coded::Plain),
            (&["gzip"], Coded::As(Coding::Gzip)),
            (&["X-GZip"], Coded::As(Coding::Gzip)),
            (&["br"], Coded::As(Coding::Brotli)),
            (&["br, gzip"], Coded::Unknown),
            (&["br", "gzip"], Coded::Unknown),
            (&["zstd"], Coded::As(Coding::Zstd)),
            (&["deflate"], Coded::Unknown),
            (&[""], Coded::Unknown),
        ] {
            let mut probe = Probe::get("/");
            let mut x = probe.exchange();
            respond(
                &mut x,
                200,
                &fields.iter().map(|coding| ("Content-Encoding", *coding)).collect::<Vec<_>>(),
            );
            assert_eq!(Coded::of(&x), coded, "{fields:?}");
        }
    }

    #[test]
    fn a_body_is_decoded_in_parts_within_its_bounds() {
        let text = b"0123456789".repeat(30_000);
        for (coding, coded) in [
            (Coding::Gzip, gzip(&text)),
            (Coding::Brotli, brotli(&text)),
            (Coding::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
        ] {
            let decoding = |most, coded: &[u8], cut| Decoding::new(coding, coded.to_vec(), most, cut);
            for pauses in [false, true] {
                assert!(
                    decode(decoding(1 << 20, &coded, false), usize::MAX, pauses)
                        == (Decoded::All, text.clone())
                );
            }
            assert!(
                decode(decoding(text.len(), &coded, false), usize::MAX, false)
                    == (Decoded::All, text.clone())
            );
            let short = text[..text.len() - 1].to_vec();
            assert!(decode(decoding(short.len(), &coded, false), usize::MAX, false) == (Decoded::Cut, short));
            // Its own memory counts beside the body.
            let own = decoding(1, &coded, false).own;
            let (end, plain) = decode(decoding(1 << 20, &coded, false), own + 100_000, false);
            assert!(matches!(end, Decoded::Full { .. }) && plain.len() <= 100_000, "{end:?}");
            // One that breaks off, and one that was cut here.
            let half = &coded[..coded.len() / 2];
            assert_eq!(decode(decoding(1 << 20, half, false), usize::MAX, false).0, Decoded::Broken);
            let (end, plain) = decode(decoding(1 << 20, half, true), usize::MAX, false);
            assert!(end == Decoded::Cut && text.starts_with(&plain), "{end:?}");
            let other = decoding(1 << 20, b"it is plain", false);
            assert_eq!(decode(other, usize::MAX, false).0, Decoded::Broken);
            // A worker does a part of it itself.
            let mut part = decoding(1 << 20, &coded, false);
            let mut until = Until::ON_WORKER;
            assert_eq!(part.go_on(usize::MAX, &mut until), Decoded::Paused);
            assert!((90_000..140_000).contains(&part.plain.len()), "{}", part.plain.len());
        }
        let two = [gzip(b"one "), gzip(b"two")].concat();
        let members = Decoding::new(Coding::Gzip, two, 100, false);
        assert_eq!(decode(members, usize::MAX, false), (Decoded::All, b"one two".to_vec()));
    }

    #[test]
    fn frames_of_zstd_have_windows_of_8_mib_at_most() {
        let frame = |window_log| {
            let mut coder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            coder.window_log(window_log).unwrap();
            coder.write_all(b"text").unwrap();
            coder.finish().unwrap()
        };
        let whole = zstd::bulk::compress(&[7; 5000], 1).unwrap();
        assert_eq!(zstd_window(&whole), 5000);
        assert_eq!(zstd_window(&zstd::bulk::compress(&[7; 300], 1).unwrap()), 1 << 10);
        assert_eq!(zstd_window(&frame(23)), 8 << 20);
        assert_eq!(zstd_window(b"\x28\xb5\x2f\xfd\x00\x0f"), (2 << 10) + (2 << 10) / 8 * 7);
        assert_eq!(zstd_window(b"\x50\x2a\x4d\x18"), 8 << 20);
        for (body, end) in [
            (frame(23), (Decoded::All, b"text".to_vec())),
            (frame(24), (Decoded::Broken, Vec::new())),
            ([frame(12), frame(12)].concat(), (Decoded::All, b"texttext".to_vec())),
            ([frame(12), frame(13)].concat(), (Decoded::Broken, b"text".to_vec())),
        ] {
            assert_eq!(decode(Decoding::new(Coding::Zstd, body, 100, false), usize::MAX, false), end);
        }
    }
}
