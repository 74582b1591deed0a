//! An HTTP server: each batch is the body of a POST.

use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;

use super::api::{self, Answer, Api, Client};
use super::{Context, Format, Kind};

pub const KIND: Kind = Kind { name: "http", blocks: false, make };

#[derive(Debug, Deserialize)]
struct Http {
    format: Format,
    /// Text in front of the entries.
    #[serde(default)]
    before: String,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    api::make(super::settings::<Http>(to)?, to, context)
}

impl Api for Http {
    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        let text = self.format.text(records);
        if self.before.is_empty() { text } else { [self.before.as_bytes(), &text].concat() }
    }

    fn outcome(&self, client: &Client, batch: Batch<'_>, answer: &Answer) -> Outcome {
        if answer.status < 400 {
            return Outcome::Delivered;
        }
        let ((host, port), status, body) =
            (client.place(batch), answer.status, client.repeated(&answer.body));
        Outcome::retry(format!(
            "server returned status code[{status}] host[{host}] port[{port}] body[{body}]"
        ))
    }
}
