//! The HTTP Event Collector of Splunk: events in JSON, one after the other.

use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde_json::Value;

use super::api::{self, Answer, Api, Client, is_final};
use super::{Context, Format, Kind};

pub const KIND: Kind = Kind { name: "splunk", blocks: false, make };

struct Splunk;

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    api::make(Splunk, to, context)
}

impl Api for Splunk {
    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        Format::Plain.text(records)
    }

    fn outcome(&self, client: &Client, _: Batch<'_>, answer: &Answer) -> Outcome {
        if answer.status == 200 {
            return Outcome::Delivered;
        }
        let repeated = client.repeated(&answer.body);
        let said = serde_json::from_str::<Value>(&repeated).ok();
        let reason = match said.as_ref().and_then(|said| said.get("text")).and_then(Value::as_str) {
            Some(text) => format!("failed to send splunk, {}", text.replace(char::is_control, " ")),
            None => format!("failed to send splunk, http status code: {}", answer.status),
        };
        if is_final(answer.status) { Outcome::Rejected(reason) } else { Outcome::retry(reason) }
    }
}
