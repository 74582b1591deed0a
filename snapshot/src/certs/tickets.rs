//! Session tickets: sessions that clients keep, encrypted by keys that all workers share.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use rustls::server::ProducesTickets;

/// Length of the key name in a ticket.
const NAME: usize = 16;

/// The ticket keys: the current one and the previous one, whose tickets are still accepted. They
/// exist only in memory and expire with [`Tickets::rotate`], and so do the tickets encrypted with
/// them.
pub struct Tickets {
    keys: ArcSwap<[Arc<Key>; 2]>,
    /// Ticket lifetime in seconds.
    lifetime: u32,
}

struct Key {
    name: [u8; NAME],
    key: RandomizedNonceKey,
}

impl Key {
    /// Fails if the system has no random numbers.
    fn random() -> Option<Arc<Key>> {
        let (mut name, mut bytes) = ([0; NAME], [0; 32]);
        aws_lc_rs::rand::fill(&mut name).ok()?;
        aws_lc_rs::rand::fill(&mut bytes).ok()?;
        Some(Arc::new(Key { name, key: RandomizedNonceKey::new(&AES_256_GCM, &bytes).ok()? }))
    }
}

impl Tickets {
    /// Creates tickets with a lifetime in seconds; keys must rotate about as often. `None` if the
    /// system has no random numbers.
    pub fn new(lifetime: u32) -> Option<Arc<Tickets>> {
        let keys = [Key::random()?, Key::random()?];
        Some(Arc::new(Tickets { keys: ArcSwap::from_pointee(keys), lifetime }))
    }

    /// Rotates the keys; tickets of the key before the previous one become invalid.
    pub fn rotate(&self) {
        if let Some(fresh) = Key::random() {
            let [current, _] = &**self.keys.load();
            self.keys.store(Arc::new([fresh, current.clone()]));
        }
    }

    /// Tickets valid only under one set of client certificate rules.
    pub(super) fn bound_to(self: &Arc<Tickets>, rules: [u8; 32]) -> Arc<dyn ProducesTickets> {
        Arc::new(Bound { tickets: self.clone(), rules })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

/// Tickets bound to one set of rules.
#[derive(Debug)]
struct Bound {
    tickets: Arc<Tickets>,
    rules: [u8; 32],
}

impl ProducesTickets for Bound {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let [current, _] = &**self.tickets.keys.load();
        let mut sealed = plain.to_vec();
        let nonce = current.key.seal_in_place_append_tag(Aad::from(&self.rules), &mut sealed).ok()?;
        let mut ticket = Vec::with_capacity(NAME + NONCE_LEN + sealed.len());
        ticket.extend_from_slice(&current.name);
        ticket.extend_from_slice(nonce.as_ref());
        ticket.append(&mut sealed);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let keys = self.tickets.keys.load();
        let key = keys.iter().find(|key| key.name == name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut plain = sealed.to_vec();
        let length = key.key.open_in_place(nonce, Aad::from(&self.rules), &mut plain).ok()?.len();
        plain.truncate(length);
        Some(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_live_for_one_rotation_and_for_one_set_of_rules() {
        let tickets = Tickets::new(3600).unwrap();
        let (ours, others) = (tickets.bound_to([1; 32]), tickets.bound_to([2; 32]));
        assert_eq!((ours.enabled(), ours.lifetime()), (true, 3600));
        let ticket = ours.encrypt(b"session").unwrap();
        assert!(!ticket.windows(7).any(|part| part == b"session"));
        assert_eq!(ours.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(tickets.bound_to([1; 32]).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(others.decrypt(&ticket), None, "made under other rules");
        for at in [0, NAME, NAME + NONCE_LEN, ticket.len() - 1] {
            let mut forged = ticket.clone();
            forged[at] ^= 1;
            assert_eq!(ours.decrypt(&forged), None, "{at}");
        }
        assert_eq!(ours.decrypt(&ticket[..20]), None);
        tickets.rotate();
        assert!(ours.decrypt(&ticket).is_some());
        assert_ne!(ours.encrypt(b"session").unwrap()[..NAME], ticket[..NAME]);
        tickets.rotate();
        assert_eq!(ours.decrypt(&ticket), None);
    }
}
