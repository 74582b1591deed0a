//! Small, repeatable changes to messages.

/// A generator of numbers that depends on its seed only (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, 0 for an `end` of 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 32) as usize % end.max(1)
    }
}

/// Makes one to four changes.
pub fn mutate(random: &mut Random, message: &mut Vec<u8>, corpus: &[&[u8]], words: &[&[u8]]) {
    for _ in 0..=random.below(4) {
        let at = random.below(message.len() + 1);
        let end = (at + random.below(12)).min(message.len());
        match random.below(10) {
            0 => {
                if let Some(byte) = message.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            1 => {
                if let Some(byte) = message.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            2 => message.insert(at, random.next() as u8),
            3..=5 => {
                let word = words[random.below(words.len())];
                message.splice(at..at, word.iter().copied());
            }
            6 => {
                let word = words[random.below(words.len())];
                message.splice(at..end, word.iter().copied());
            }
            7 => {
                message.drain(at..end);
            }
            8 => {
                // A line twice, or a line from elsewhere.
                let other = match random.below(2) {
                    0 => message.clone(),
                    _ => corpus[random.below(corpus.len())].to_vec(),
                };
                let lines: Vec<&[u8]> = other.split_inclusive(|&b| b == b'\n').collect();
                let line = lines.get(random.below(lines.len())).copied().unwrap_or_default();
                let start = message[..at].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
                message.splice(start..start, line.iter().copied());
            }
            _ if random.below(4) == 0 => message.truncate(at),
            _ => {
                let end = (at + random.below(4)).min(message.len());
                let piece = message[at..end].to_vec();
                let to = random.below(message.len() + 1);
                message.splice(to..to, piece);
            }
        }
    }
}
