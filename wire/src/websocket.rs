//! hot path
//!
//! Follows WebSocket frames (RFC 6455 section 5.2) that pass through: their ends, and whether one
//! was the last.

/// The longest frame header.
const LONGEST: usize = 14;

const CLOSE: u8 = 8;

/// Going away (RFC 6455 section 7.4.1).
const GOING_AWAY: [u8; 2] = 1001u16.to_be_bytes();

/// The Close frame of a server that goes away.
pub const CLOSE_OF_SERVER: [u8; 4] = [0x80 | CLOSE, 2, GOING_AWAY[0], GOING_AWAY[1]];

/// The Close frame of a client, whose frames are masked.
pub fn close_of_client(mask: [u8; 4]) -> [u8; 8] {
    let [a, b, c, d] = mask;
    [0x80 | CLOSE, 0x80 | 2, a, b, c, d, GOING_AWAY[0] ^ a, GOING_AWAY[1] ^ b]
}

/// Follows the frames of one direction.
#[derive(Debug, Default)]
pub struct Frames {
    head: [u8; LONGEST],
    have: usize,
    /// Bytes of payload still to come.
    left: u64,
    closed: bool,
}

impl Frames {
    /// Whether no frame is incomplete.
    #[inline]
    pub fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }

    /// Whether a Close frame has started: nothing else follows it.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Processes bytes.
    #[inline]
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[self.step(bytes)..];
        }
    }

    /// Processes the rest of the current frame, and returns its length in bytes.
    pub fn pass_one(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !self.is_between() {
            at += self.step(&bytes[at..]);
        }
        at
    }

    /// Processes at least one byte, and none of the next frame.
    #[inline]
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let n = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= n as u64;
            return n;
        }
        self.head[self.have] = bytes[0];
        self.have += 1;
        if self.have < 2 {
            return 1;
        }
        let (long, masked) = (self.head[1] & 0x7f, self.head[1] & 0x80 != 0);
        let extended = match long {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.have < 2 + extended + 4 * usize::from(masked) {
            return 1;
        }
        self.left = match extended {
            0 => u64::from(long),
            _ => self.head[2..2 + extended].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        self.closed |= self.head[0] & 0x0f == CLOSE;
        self.have = 0;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, length: usize, masked: bool) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        let mask = if masked { 0x80 } else { 0 };
        match length {
            0..126 => frame.push(mask | length as u8),
            126..65536 => {
                frame.push(mask | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.resize(frame.len() + 4 * usize::from(masked) + length, 7);
        frame
    }

    #[test]
    fn frames_are_followed_in_any_segmentation() {
        for masked in [false, true] {
            let lengths = [0, 1, 125, 126, 65_535, 65_536];
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| frame(2, *length, masked)).collect();
            for size in [1, 2, 3, 7, 1000, bytes.len()] {
                let mut frames = Frames::default();
                bytes.chunks(size).for_each(|part| frames.pass(part));
                assert!(frames.is_between() && !frames.is_closed(), "in parts of {size}");
                frames.pass(&frame(CLOSE, 2, masked)[..3]);
                assert_eq!((frames.is_between(), frames.is_closed()), (false, !masked));
                frames.pass(&frame(CLOSE, 2, masked)[3..]);
                assert!(frames.is_between() && frames.is_closed());
            }
        }
    }

    #[test]
    fn the_rest_of_a_frame_ends_before_the_next() {
        let one = frame(1, 200, true);
        let bytes = [&one[..], &one].concat();
        for begun in 1..one.len() {
            let mut frames = Frames::default();
            frames.pass(&bytes[..begun]);
            assert_eq!(frames.pass_one(&bytes[begun..]), one.len() - begun);
            assert_eq!(frames.pass_one(&one), 0, "no frame is incomplete");
        }
        // An absurd length.
        let mut frames = Frames::default();
        frames.pass(&[0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(frames.pass_one(&one), one.len());
        assert!(!frames.is_between());
    }

    #[test]
    fn close_frames_are_valid() {
        for bytes in [&CLOSE_OF_SERVER[..], &close_of_client([9, 8, 7, 6])] {
            let mut frames = Frames::default();
            frames.pass(bytes);
            assert!(frames.is_between() && frames.is_closed());
        }
        // 1001, masked with the key before it.
        assert_eq!(close_of_client([0; 4])[6..], [3, 0xe9]);
        assert_eq!(close_of_client([0xff, 0x0f, 1, 2]), [0x88, 0x82, 0xff, 0x0f, 1, 2, 0xfc, 0xe6]);
    }
}
