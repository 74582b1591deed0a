//! hot path
//!
//! A body as it comes in, piece by piece.
//!
//! A piece stays at the front of its owner's buffer until it is used. So a sender that is cut off
//! while sending one has lost nothing, and may send it again.

use wire::h1::Refusal;
use wire::h1::chunked::Chunked;
use wire::{Fields, Framing};

use crate::buffers::Buffer;

/// A body that is being read.
#[derive(Debug)]
pub(crate) struct Body {
    incoming: Incoming,
    /// The piece at the front of the buffer.
    piece: Option<Piece>,
    /// Everything was taken; the last piece may be waiting to be used.
    complete: bool,
    /// Bytes taken so far, in the form in which they were taken.
    received: u64,
    /// Those of them that are the body's own.
    measured: u64,
}

#[derive(Debug)]
enum Incoming {
    /// This many bytes are still to come.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Bytes to send.
    emit: usize,
    /// Bytes of the buffer that go with them.
    consumed: usize,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Body {
        let (incoming, complete) = match framing {
            Framing::None | Framing::Length(0) => (Incoming::Length(0), true),
            Framing::Length(length) => (Incoming::Length(length), false),
            Framing::Chunked => (Incoming::Chunked(Chunked::default()), false),
            Framing::UntilClose => (Incoming::UntilClose, false),
        };
        Body { incoming, piece: None, complete, received: 0, measured: 0 }
    }

    /// That of a request: its trailers do not go on as they come ([`Chunked::with_trailers_apart`]).
    #[inline]
    pub(crate) fn of_request(framing: Framing) -> Body {
        let mut body = Body::new(framing);
        if framing == Framing::Chunked {
            body.incoming = Incoming::Chunked(Chunked::default().with_trailers_apart());
        }
        body
    }

    /// Takes what is at the front of the buffer: as it is to be sent on in the same coding, if
    /// `framed`, or else without any. True if there is a piece or nothing more comes; false if more
    /// must be read. A piece that was not used is given again.
    #[inline]
    pub(crate) fn take(&mut self, buffer: Option<&mut Buffer>, framed: bool) -> Result<bool, Refusal> {
        if self.piece.is_some() || self.complete {
            return Ok(true);
        }
        let Some(buffer) = buffer.filter(|buffer| !buffer.is_empty()) else { return Ok(false) };
        let here = buffer.len();
        let (piece, data) = match &mut self.incoming {
            Incoming::Length(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(here);
                *left -= n as u64;
                self.complete = *left == 0;
                (Piece { emit: n, consumed: n }, n)
            }
            Incoming::Chunked(chunked) => {
                let data = buffer.data_mut();
                let taken = if framed { chunked.relay(data)? } else { chunked.decode(data)? };
                self.complete = taken.done;
                (Piece { emit: taken.emit, consumed: taken.consumed }, taken.data)
            }
            Incoming::UntilClose => (Piece { emit: here, consumed: here }, here),
        };
        self.received += piece.emit as u64;
        self.measured += data as u64;
        if piece.emit > 0 {
            self.piece = Some(piece);
        } else {
            buffer.consume(piece.consumed);
        }
        Ok(self.piece.is_some() || self.complete)
    }

    /// The piece that was taken; empty if none is waiting.
    #[inline]
    pub(crate) fn piece<'b>(&self, buffer: Option<&'b Buffer>) -> &'b [u8] {
        match (self.piece, buffer) {
            (Some(piece), Some(buffer)) => &buffer.data()[..piece.emit],
            _ => &[],
        }
    }

    /// The piece is done with.
    #[inline]
    pub(crate) fn used(&mut self, buffer: Option<&mut Buffer>) {
        if let (Some(piece), Some(buffer)) = (self.piece.take(), buffer) {
            buffer.consume(piece.consumed);
        }
    }

    /// No piece comes after the one that was taken.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// It was read to its end, and used.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.complete && self.piece.is_none()
    }

    /// Whether the rest of it is in the buffer, as far as that is known without looking at it.
    #[inline]
    pub(crate) fn is_at_hand(&self, buffer: Option<&Buffer>) -> bool {
        match (&self.incoming, buffer) {
            _ if self.complete => true,
            (Incoming::Length(left), Some(buffer)) => {
                let piece = self.piece.map_or(0, |piece| piece.consumed);
                (buffer.len() - piece) as u64 >= *left
            }
            _ => false,
        }
    }

    /// Something is still to come, and all of it fits into the buffer.
    #[inline]
    pub(crate) fn fits(&self, buffer: Option<&mut Buffer>) -> bool {
        let (Incoming::Length(left), Some(buffer)) = (&self.incoming, buffer) else { return false };
        let here = buffer.len() as u64;
        self.piece.is_none() && here < *left && left - here <= buffer.space().len() as u64
    }

    /// Drops the rest of it if that is in the buffer; says whether it was.
    #[inline]
    pub(crate) fn finish(&mut self, mut buffer: Option<&mut Buffer>) -> bool {
        if !self.is_at_hand(buffer.as_deref()) {
            return false;
        }
        self.used(buffer.as_deref_mut());
        if let (Incoming::Length(left), Some(buffer)) = (&mut self.incoming, buffer) {
            // It is at hand, so that many bytes are there.
            buffer.consume(usize::try_from(std::mem::take(left)).unwrap_or(0));
        }
        self.complete = true;
        true
    }

    /// Gives the body up: no message can be read behind the rest of it.
    #[cold]
    pub(crate) fn refuse(&mut self) {
        (self.incoming, self.piece, self.complete) = (Incoming::UntilClose, None, false);
    }

    /// The connection has ended: whether that is how the body ends.
    pub(crate) fn end(&mut self) -> bool {
        let ends = matches!(self.incoming, Incoming::UntilClose);
        self.complete |= ends;
        ends
    }

    /// It comes in chunks, which can go on as they are.
    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self.incoming, Incoming::Chunked(_))
    }

    /// It ends with the connection.
    #[inline]
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.incoming, Incoming::UntilClose)
    }

    /// Bytes that came of it: what was taken, and what is left of one that is in the buffer whole.
    pub(crate) fn received(&self, buffer: Option<&Buffer>) -> u64 {
        match self.incoming {
            Incoming::Length(left) if self.is_at_hand(buffer) => self.received + left,
            _ => self.received,
        }
    }

    #[inline]
    pub(crate) fn measured(&self) -> u64 {
        self.measured
    }

    /// The trailers of a body that was taken out of its coding, and of a request's in any case.
    #[inline]
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        match &self.incoming {
            Incoming::Chunked(chunked) => Some(chunked.trailers()).filter(|trailers| !trailers.is_empty()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Buffers;

    fn fill(buffer: &mut Buffer, bytes: &[u8]) {
        buffer.space()[..bytes.len()].copy_from_slice(bytes);
        buffer.filled(bytes.len());
    }

    fn buffer(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffers::new(0).take();
        fill(&mut buffer, bytes);
        buffer
    }

    #[test]
    fn a_body_ends_where_its_length_says_and_counts_what_came() {
        let mut came = buffer(b"abc");
        let mut body = Body::new(Framing::Length(6));
        assert_eq!((body.is_at_hand(Some(&came)), body.received(Some(&came))), (false, 0));
        assert!(body.fits(Some(&mut came)));
        assert_eq!(body.take(Some(&mut came), false), Ok(true));
        assert_eq!((body.piece(Some(&came)), body.received(Some(&came))), (&b"abc"[..], 3));
        assert!(!body.is_complete() && !body.is_at_hand(Some(&came)) && !body.is_over());
        fill(&mut came, b"defNEXT");
        assert!(body.is_at_hand(Some(&came)), "the piece and the rest of it");
        assert_eq!(body.received(Some(&came)), 6);
        body.used(Some(&mut came));
        assert_eq!(body.take(Some(&mut came), false), Ok(true));
        assert_eq!((body.piece(Some(&came)), body.received(Some(&came))), (&b"def"[..], 6));
        assert!(body.is_complete() && !body.is_over(), "the last piece is still to be used");
        body.used(Some(&mut came));
        assert!(body.is_over());
        assert_eq!(came.data(), b"NEXT");
    }

    #[test]
    fn what_is_left_of_a_body_goes_only_if_all_of_it_is_there() {
        let cases: [(&[u8], Option<&[u8]>); 3] =
            [(b"abcdefNEXT", Some(b"NEXT")), (b"abcdef", Some(b"")), (b"abcde", None)];
        for (bytes, left) in cases {
            let mut came = buffer(bytes);
            let mut body = Body::new(Framing::Length(6));
            assert_eq!(body.finish(Some(&mut came)), left.is_some());
            assert_eq!((came.data(), body.is_over()), (left.unwrap_or(bytes), left.is_some()));
        }
        let mut came = buffer(b"abc");
        let mut body = Body::new(Framing::Length(3));
        body.refuse();
        assert!(!body.is_over() && !body.is_at_hand(Some(&came)) && !body.finish(Some(&mut came)));
    }

    #[test]
    fn a_body_fits_if_the_rest_of_it_has_room_behind_what_came() {
        let room = buffer(b"").capacity() as u64;
        for (length, fits) in [(3, false), (4, true), (room - 1, true), (room, true), (room + 1, false)] {
            assert_eq!(Body::new(Framing::Length(length)).fits(Some(&mut buffer(b"abc"))), fits, "{length}");
        }
        assert!(!Body::new(Framing::UntilClose).fits(Some(&mut buffer(b"abc"))));
    }

    #[test]
    fn only_a_body_without_a_length_ends_with_the_connection() {
        for (framing, chunked, until_close) in [
            (Framing::Length(3), false, false),
            (Framing::Chunked, true, false),
            (Framing::UntilClose, false, true),
        ] {
            let mut body = Body::new(framing);
            assert_eq!((body.is_chunked(), body.ends_with_connection()), (chunked, until_close));
            assert_eq!((body.end(), body.is_complete()), (until_close, until_close));
        }
    }

    #[test]
    fn chunks_count_as_they_are_taken() {
        let chunks = b"3\r\nabc\r\n0\r\n\r\n";
        for (framed, received) in [(false, 3), (true, chunks.len() as u64)] {
            let mut came = buffer(chunks);
            let mut body = Body::new(Framing::Chunked);
            while !body.is_over() {
                assert_eq!(body.take(Some(&mut came), framed), Ok(true));
                body.used(Some(&mut came));
            }
            assert_eq!((body.received(Some(&came)), body.measured()), (received, 3));
        }
    }
}
