//! The messages of the runner protocol (`ext-plugin.fbs` of api7/ext-plugin-proto).

use std::net::IpAddr;

use sdk::Method;

use super::flat::{Field, Table, message};

/// The type in a frame's head.
pub(super) const ERROR: u8 = 0;
pub(super) const PREPARE_CONF: u8 = 1;
pub(super) const REQUEST: u8 = 2;
pub(super) const EXTRA_INFO: u8 = 3;
pub(super) const RESPONSE: u8 = 4;

/// The longest message: its length has three bytes.
pub(super) const LONGEST: usize = (1 << 24) - 1;

/// Headers or arguments in one answer of a runner, and their bytes.
const MOST_ENTRIES: usize = 1000;
const MOST_TEXT: usize = 1 << 20;

/// The code of an error by which a runner says that it does not know a token.
const CONF_TOKEN_NOT_FOUND: u8 = 2;

/// A header or an argument; without a value it is to be removed.
pub(super) type Entry<'m> = (&'m [u8], Option<&'m [u8]>);

pub(super) fn prepare_conf(conf: &[(String, String)], key: &str) -> Vec<u8> {
    let entries = conf.iter().map(|(name, value)| entry(name.as_bytes(), Some(value.as_bytes())));
    message(&[Field::Tables(entries.collect()), Field::Bytes(key.as_bytes())])
}

/// The token in the answer to [`prepare_conf`].
pub(super) fn conf_token(answer: &[u8]) -> Option<u32> {
    Table::root(answer).map(|root| root.u32(0))
}

fn entry<'a>(name: &'a [u8], value: Option<&'a [u8]>) -> Vec<Field<'a>> {
    vec![Field::Bytes(name), value.map_or(Field::Absent, Field::Bytes)]
}

fn entries<'a>(list: &'a [(Vec<u8>, Option<Vec<u8>>)]) -> Field<'a> {
    Field::Tables(list.iter().map(|(name, value)| entry(name, value.as_deref())).collect())
}

/// A request as the runner sees it.
pub(super) struct Request {
    pub client: IpAddr,
    pub method: Method,
    pub path: Vec<u8>,
    pub args: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Request {
    pub(super) fn message(&self, id: u32, token: u32) -> Vec<u8> {
        let ip = match self.client {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        message(&[
            Field::U32(id),
            Field::Bytes(&ip),
            method(self.method).map_or(Field::Absent, Field::U8),
            Field::Bytes(&self.path),
            entries(&self.args),
            entries(&self.headers),
            Field::U32(token),
        ])
    }
}

/// The number of a method. Others are sent as GET, which is what an absent number means.
fn method(method: Method) -> Option<u8> {
    const ALL: [&str; 15] = [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "MKCOL",
        "COPY",
        "MOVE",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "LOCK",
        "UNLOCK",
        "PATCH",
        "TRACE",
    ];
    ALL.iter().position(|name| *name == method.as_str()).and_then(|at| u8::try_from(at).ok())
}

/// A response as the runner sees it.
pub(super) struct Response {
    pub status: u16,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Response {
    pub(super) fn message(&self, id: u32, token: u32) -> Vec<u8> {
        message(&[Field::U32(id), Field::U16(self.status), entries(&self.headers), Field::U32(token)])
    }
}

/// The decision of a runner about a request.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Action<'m> {
    /// Nothing changes.
    #[default]
    None,
    Stop {
        status: u16,
        headers: Vec<Entry<'m>>,
        body: &'m [u8],
    },
    Rewrite {
        path: Option<&'m [u8]>,
        headers: Vec<Entry<'m>>,
        args: Vec<Entry<'m>>,
        response_headers: Vec<Entry<'m>>,
        body: &'m [u8],
    },
}

impl<'m> Action<'m> {
    /// `None` if the message is invalid.
    pub(super) fn read(answer: &'m [u8]) -> Option<Action<'m>> {
        let root = Table::root(answer)?;
        let mut left = MOST_TEXT;
        Some(match root.u8(1) {
            0 => Action::None,
            1 => {
                let stop = root.table(2)?;
                Action::Stop {
                    status: stop.u16(0),
                    headers: read_entries(&stop, 1, &mut left)?,
                    body: stop.bytes(2).unwrap_or_default(),
                }
            }
            2 => {
                let rewrite = root.table(2)?;
                Action::Rewrite {
                    path: rewrite.bytes(0).filter(|path| path.len() <= MOST_TEXT),
                    headers: read_entries(&rewrite, 1, &mut left)?,
                    args: read_entries(&rewrite, 2, &mut left)?,
                    response_headers: read_entries(&rewrite, 3, &mut left)?,
                    body: rewrite.bytes(4).unwrap_or_default(),
                }
            }
            _ => return None,
        })
    }
}

/// The decision of a runner about a response; a status of 0 keeps it, as does an empty body.
#[derive(Debug, PartialEq)]
pub(super) struct Changed<'m> {
    pub status: u16,
    pub headers: Vec<Entry<'m>>,
    pub body: &'m [u8],
}

impl<'m> Changed<'m> {
    /// `None` if the message is invalid.
    pub(super) fn read(answer: &'m [u8]) -> Option<Changed<'m>> {
        let root = Table::root(answer)?;
        let headers = read_entries(&root, 2, &mut { MOST_TEXT })?;
        Some(Changed { status: root.u16(1), headers, body: root.bytes(3).unwrap_or_default() })
    }
}

/// The entries of a list; `left` is how many bytes they may have.
fn read_entries<'m>(table: &Table<'m>, index: usize, left: &mut usize) -> Option<Vec<Entry<'m>>> {
    let tables = table.tables(index, MOST_ENTRIES)?;
    let one = |entry: Table<'m>| {
        let (name, value) = (entry.bytes(0)?, entry.bytes(1));
        *left = left.checked_sub(name.len() + value.map_or(0, <[u8]>::len))?;
        Some((name, value))
    };
    tables.into_iter().map(one).collect()
}

/// A question of a runner during a call.
#[derive(Debug, PartialEq)]
pub(super) enum Wanted<'m> {
    Var(&'m [u8]),
    RequestBody,
    ResponseBody,
}

impl<'m> Wanted<'m> {
    pub(super) fn read(question: &'m [u8]) -> Option<Wanted<'m>> {
        let root = Table::root(question)?;
        Some(match root.u8(0) {
            1 => Wanted::Var(root.table(1)?.bytes(0)?),
            2 => Wanted::RequestBody,
            3 => Wanted::ResponseBody,
            _ => return None,
        })
    }
}

/// The answer to a question of a runner.
pub(super) fn extra_info(result: Option<&[u8]>) -> Vec<u8> {
    message(&[result.map_or(Field::Absent, Field::Bytes)])
}

/// The text of an error, and whether it says that the token is unknown.
pub(super) fn error(answer: &[u8]) -> (&'static str, bool) {
    match Table::root(answer).map(|root| root.u8(0)) {
        Some(0) => ("the runner reports a bad request", false),
        Some(1) => ("the runner reports that it is unavailable", false),
        Some(CONF_TOKEN_NOT_FOUND) => ("the runner does not know the configuration", true),
        _ => ("the runner reports an unknown error", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(conf_token(&message(&[Field::U32(9)])), Some(9));
        assert_eq!(error(&message(&[Field::U8(2)])), ("the runner does not know the configuration", true));
        assert!(!error(&message(&[Field::U8(1)])).1 && !error(b"").1);
        let headers = || Field::Tables(vec![entry(b"X-A", Some(b"1")), entry(b"X-B", None)]);
        let stop = vec![Field::U16(403), headers(), Field::Bytes(b"no")];
        let answer = message(&[Field::U32(1), Field::U8(1), Field::Table(stop)]);
        let pairs: Vec<Entry<'_>> = vec![(b"X-A", Some(b"1")), (b"X-B", None)];
        assert_eq!(
            Action::read(&answer),
            Some(Action::Stop { status: 403, headers: pairs.clone(), body: b"no" })
        );
        assert_eq!(Action::read(&message(&[Field::U32(1)])), Some(Action::None));
        assert_eq!(Action::read(&message(&[Field::U32(1), Field::U8(3)])), None);
        assert_eq!(Action::read(&message(&[Field::U32(1), Field::U8(1)])), None, "a union without its table");
        let changed = message(&[Field::U32(1), Field::U16(201), headers(), Field::Bytes(b"new")]);
        assert_eq!(Changed::read(&changed), Some(Changed { status: 201, headers: pairs, body: b"new" }));
        let var = message(&[Field::U8(1), Field::Table(vec![Field::Bytes(b"host")])]);
        assert_eq!(Wanted::read(&var), Some(Wanted::Var(b"host")));
        assert_eq!(Wanted::read(&message(&[Field::U8(2)])), Some(Wanted::RequestBody));
    }

    #[test]
    fn texts_of_an_answer_are_bounded() {
        let many = |count: usize| Field::Tables((0..count).map(|_| entry(b"a", Some(b"b"))).collect());
        let answer = |headers: Field<'static>| message(&[Field::U32(1), Field::U16(0), headers]);
        assert!(Changed::read(&answer(many(MOST_ENTRIES))).is_some());
        assert!(Changed::read(&answer(many(MOST_ENTRIES + 1))).is_none());
        let long: &'static [u8] = vec![b'x'; MOST_TEXT / 2].leak();
        assert!(Changed::read(&answer(Field::Tables(vec![entry(b"a", Some(long))]))).is_some());
        let two = vec![entry(b"a", Some(long)), entry(b"b", Some(long))];
        assert!(Changed::read(&answer(Field::Tables(two))).is_none());
    }

    #[test]
    fn methods_have_the_numbers_of_the_schema() {
        let number = |name: &str| method(Method::from_bytes(name.as_bytes()));
        assert_eq!(
            (number("GET"), number("POST"), number("PATCH"), number("BREW")),
            (Some(0), Some(2), Some(13), None)
        );
    }
}
