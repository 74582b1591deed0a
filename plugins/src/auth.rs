//! What the auth plugins share.

use sdk::Exchange;
use sdk::Name;

/// Removes the headers by which the upstream learns who a request is from, as a
/// client may have sent them itself. Spellings with `_` go too: many a server
/// reads them as the same (CGI's `HTTP_X_CONSUMER_USERNAME`).
pub(crate) fn strip_identity(x: &mut Exchange<'_>) {
    let fields = &mut x.messages.request.fields;
    if fields.iter().any(|(name, _, id)| tells_identity(id, name)) {
        fields.retain(|id, name, _| !tells_identity(id, name));
    }
}

#[inline]
fn tells_identity(id: Name, name: &[u8]) -> bool {
    match id {
        Name::XConsumerUsername | Name::XCredentialIdentifier | Name::XConsumerCustomId => true,
        Name::Other => {
            matches!(name.len(), 19 | 20 | 23)
                && IDENTITY.iter().any(|known| {
                    known.len() == name.len()
                        && known
                            .bytes()
                            .zip(name)
                            .all(|(a, &b)| a == b.to_ascii_lowercase() || a == b'-' && b == b'_')
                })
        }
        _ => false,
    }
}

static IDENTITY: [&str; 3] = ["x-consumer-username", "x-credential-identifier", "x-consumer-custom-id"];

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::testing::Probe;

    #[test]
    fn all_spellings_of_the_identity_go_and_nothing_else() {
        let mut probe = Probe::request(
            "GET",
            "/",
            &[
                ("X-Consumer-Username", "root"),
                ("x_consumer_username", "root"),
                ("X-Credential_Identifier", "1"),
                ("X_CONSUMER_CUSTOM_ID", "1"),
                ("X-Consumer-Usernames", "stays"),
                ("Accept", "*/*"),
            ],
        );
        let mut x = probe.exchange();
        strip_identity(&mut x);
        let names: Vec<_> = x.request().fields.iter().map(|(name, ..)| name.to_vec()).collect();
        assert_eq!(names, [b"X-Consumer-Usernames".to_vec(), b"Accept".to_vec()]);
    }
}
