//! Metrics as OTLP has them: what the page shows, under the same names. Counters are cumulative sums since the gateway's
//! start, labels without a value are left out.

use sdk::meters::Meters;
use sdk::otlp::{self, Any, CUMULATIVE, field};

use super::all::{self, Form, Row, Type};
use super::facts::Facts;

/// Bytes of an export, beyond which the next one begins: far below the 4 MiB that collectors of gRPC take.
const EXPORT: usize = 1 << 20;

/// Nanoseconds since 1970: the gateway's start, and the moment of the values.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub start: u64,
    pub now: u64,
}

/// All metrics, in exports of some 1 MiB: encoded, each with its field in the message of the scope.
pub fn exports(meters: &Meters, facts: &Facts<'_>, times: Times) -> Vec<Vec<u8>> {
    let mut form = Exports::new(times, EXPORT);
    meters.read(facts.steady_ms, |reading| all::write(reading, facts, &mut form));
    form.finish()
}

/// Exports under way.
struct Exports {
    times: Times,
    /// Bytes of a full export.
    bound: usize,
    /// The metric.
    name: String,
    help: String,
    kind: Type,
    /// Its points, encoded with their field.
    points: Vec<u8>,
    /// The metrics before it in this export.
    export: Vec<u8>,
    full: Vec<Vec<u8>>,
}

impl Exports {
    fn new(times: Times, bound: usize) -> Exports {
        Exports {
            times,
            bound,
            name: String::new(),
            help: String::new(),
            kind: Type::Gauge,
            points: Vec::new(),
            export: Vec::new(),
            full: Vec::new(),
        }
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        self.end_metric();
        self.end_export();
        self.full
    }

    /// Adds the metric with its points, if it has any.
    fn end_metric(&mut self) {
        if self.points.is_empty() {
            return;
        }
        let mut metric = Vec::with_capacity(self.points.len() + self.name.len() + self.help.len() + 32);
        otlp::text(field::METRIC_NAME, self.name.as_bytes(), &mut metric);
        otlp::text(field::METRIC_DESCRIPTION, self.help.as_bytes(), &mut metric);
        let data = match self.kind {
            Type::Counter => field::METRIC_SUM,
            Type::Gauge => field::METRIC_GAUGE,
            Type::Histogram => field::METRIC_HISTOGRAM,
        };
        otlp::message(data, &mut metric, |out| {
            out.append(&mut self.points);
            if self.kind != Type::Gauge {
                otlp::number(field::TEMPORALITY, CUMULATIVE, out);
            }
            if self.kind == Type::Counter {
                otlp::number(field::SUM_MONOTONIC, 1, out);
            }
        });
        otlp::bytes(field::SCOPES_RECORDS, &metric, &mut self.export);
    }

    fn end_export(&mut self) {
        if !self.export.is_empty() {
            self.full.push(std::mem::take(&mut self.export));
        }
    }

    /// Adds a point. The points of one metric may be in several exports.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        otlp::message(field::POINTS, &mut self.points, write);
        if self.export.len() + self.points.len() >= self.bound {
            self.end_metric();
            self.end_export();
        }
    }

    fn times(&self, out: &mut Vec<u8>) {
        if self.kind != Type::Gauge {
            otlp::fixed64(field::POINT_START, self.times.start, out);
        }
        otlp::fixed64(field::POINT_TIME, self.times.now, out);
    }
}

impl Form for Exports {
    fn metric(&mut self, name: &str, kind: Type, help: &str) {
        self.end_metric();
        name.clone_into(&mut self.name);
        help.clone_into(&mut self.help);
        self.kind = kind;
    }

    fn point(&mut self, labels: &[&str], value: i128) {
        let mut point = Vec::with_capacity(256);
        self.times(&mut point);
        // Values beyond 63 bits are those of a counter that has run for centuries.
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        otlp::fixed64(field::NUMBER_INT, value.cast_unsigned(), &mut point);
        attributes(field::NUMBER_ATTRIBUTES, labels, &mut point);
        self.add(|out| out.append(&mut point));
    }

    fn histograms<'r>(&mut self, bounds: &[f64], rows: impl Iterator<Item = Row<'r>>) {
        let bounds: Vec<u8> = bounds.iter().flat_map(|bound| bound.to_le_bytes()).collect();
        for Row { labels, counts, sum } in rows {
            let mut point = Vec::with_capacity(512);
            self.times(&mut point);
            otlp::fixed64(field::HISTOGRAM_COUNT, counts.iter().sum(), &mut point);
            otlp::fixed64(field::HISTOGRAM_SUM, sum.to_bits(), &mut point);
            let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            otlp::bytes(field::HISTOGRAM_BUCKETS, &counts, &mut point);
            otlp::bytes(field::HISTOGRAM_BOUNDS, &bounds, &mut point);
            attributes(field::HISTOGRAM_ATTRIBUTES, &labels, &mut point);
            self.add(|out| out.append(&mut point));
        }
    }
}

/// Appends the labels of these texts as attributes.
fn attributes(field: u32, texts: &[&str], out: &mut Vec<u8>) {
    for text in texts {
        let mut rest = *text;
        while let Some((name, value, next)) = label(rest) {
            if !value.is_empty() {
                otlp::attribute(field, name.as_bytes(), Any::Text(value.as_bytes()), out);
            }
            rest = next;
        }
    }
}

/// The first label of `name="value",…`, and the text behind it.
fn label(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once("=\"")?;
    let mut value = String::new();
    let mut letters = rest.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => {
                let next = &rest[at + 1..];
                return Some((name, value, next.strip_prefix(',').unwrap_or(next)));
            }
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sdk::meters::{Labels, Sample};

    use super::*;

    const TIMES: Times = Times { start: 5, now: 7 };

    #[derive(Clone, PartialEq, Message)]
    struct Scope {
        #[prost(message, repeated, tag = "2")]
        metrics: Vec<Metric>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Metric {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, tag = "5")]
        gauge: Option<Numbers>,
        #[prost(message, optional, tag = "7")]
        sum: Option<Numbers>,
        #[prost(message, optional, tag = "9")]
        histogram: Option<Histograms>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Numbers {
        #[prost(message, repeated, tag = "1")]
        points: Vec<Number>,
        #[prost(int32, tag = "2")]
        temporality: i32,
        #[prost(bool, tag = "3")]
        monotonic: bool,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Number {
        #[prost(fixed64, tag = "2")]
        start: u64,
        #[prost(fixed64, tag = "3")]
        time: u64,
        #[prost(sfixed64, tag = "6")]
        value: i64,
        #[prost(message, repeated, tag = "7")]
        attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Histograms {
        #[prost(message, repeated, tag = "1")]
        points: Vec<Histogram>,
        #[prost(int32, tag = "2")]
        temporality: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Histogram {
        #[prost(fixed64, tag = "2")]
        start: u64,
        #[prost(fixed64, tag = "4")]
        count: u64,
        #[prost(double, tag = "5")]
        sum: f64,
        #[prost(fixed64, repeated, tag = "6")]
        buckets: Vec<u64>,
        #[prost(double, repeated, tag = "7")]
        bounds: Vec<f64>,
        #[prost(message, repeated, tag = "9")]
        attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Attribute {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Text>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    fn named(attributes: &[Attribute]) -> Vec<(&str, &str)> {
        attributes.iter().map(|one| (&one.key[..], &one.value.as_ref().unwrap().text[..])).collect()
    }

    fn decoded(exports: &[Vec<u8>]) -> Vec<Metric> {
        exports.iter().flat_map(|export| Scope::decode(&export[..]).unwrap().metrics).collect()
    }

    #[test]
    fn the_page_is_sums_gauges_and_histograms() {
        let meters = Meters::default();
        let shard = meters.shard(0);
        let labels = |_| Labels {
            route: "1".into(),
            status: "code=\"200\",route=\"1\",node=\"\"".into(),
            latency: "route=\"1\"".into(),
            bandwidth: "route=\"1\"".into(),
        };
        let sample = Sample { total_us: 1_500, upstream_us: None, received: 3, sent: 4 };
        shard.http(None, |key| key.push(1), labels, &sample);
        shard.http(None, |key| key.push(1), labels, &sample);
        let facts = Facts { hostname: "h\"\n1", version: "v", steady_ms: 1, ..Facts::default() };
        let all = decoded(&exports(&meters, &facts, TIMES));
        let metric = |name: &str| all.iter().find(|metric| metric.name == name).cloned().unwrap();
        let status = metric("apisix_http_status").sum.unwrap();
        assert!(status.monotonic && status.temporality == 2);
        let [point] = &status.points[..] else { panic!("{status:?}") };
        assert_eq!((point.start, point.time, point.value), (5, 7, 2));
        assert_eq!(named(&point.attributes), [("code", "200"), ("route", "1")]);
        let node = metric("apisix_node_info").gauge.unwrap();
        assert_eq!(named(&node.points[0].attributes), [("hostname", "h\"\n1"), ("version", "v")]);
        assert_eq!((node.points[0].start, node.points[0].time, node.points[0].value), (0, 7, 1));
        let latency = metric("apisix_http_latency").histogram.unwrap();
        assert_eq!((latency.temporality, latency.points.len()), (2, 2));
        let request =
            latency.points.iter().find(|point| named(&point.attributes)[0] == ("type", "request")).unwrap();
        assert_eq!((request.start, request.count, request.sum), (5, 2, 3.0));
        assert_eq!((request.buckets.len(), request.bounds.len()), (16, 15));
        assert_eq!((request.buckets[1], request.bounds[1]), (2, 2.0));
        let bandwidth = metric("apisix_bandwidth").sum.unwrap();
        assert_eq!(named(&bandwidth.points[0].attributes), [("type", "egress"), ("route", "1")]);
        assert!(all.iter().any(|metric| metric.name == "sluice_panics_total"));
    }

    #[test]
    fn exports_are_bounded_and_have_all_points() {
        let mut form = Exports::new(TIMES, 1000);
        for name in ["a", "b"] {
            form.metric(name, Type::Counter, "help");
            (0..100).for_each(|n| form.point(&[&format!("n=\"{n}\"")], n.into()));
        }
        form.metric("none", Type::Gauge, "help");
        form.metric("c", Type::Gauge, "help");
        form.point(&[], -1);
        let exports = form.finish();
        assert!(exports.len() > 4, "{}", exports.len());
        for export in &exports {
            assert!(export.len() < 1200, "{}", export.len());
        }
        let all = decoded(&exports);
        let points = |name: &str| -> Vec<i64> {
            let same = all.iter().filter(|metric| metric.name == name);
            same.flat_map(|metric| &metric.sum.as_ref().unwrap().points).map(|point| point.value).collect()
        };
        assert_eq!((points("a"), points("b")), ((0..100).collect(), (0..100).collect()));
        assert!(!all.iter().any(|metric| metric.name == "none"));
        assert_eq!(all.last().unwrap().gauge.as_ref().unwrap().points[0].value, -1);
    }

    #[test]
    fn labels_are_read_from_their_text() {
        let text = "a=\"b\\\\\\\"\\n,c=\\\"\",d=\"\",e=\"\u{e9}\"";
        let (name, value, rest) = label(text).unwrap();
        assert_eq!((name, &value[..], rest), ("a", "b\\\"\n,c=\"", "d=\"\",e=\"\u{e9}\""));
        assert_eq!(label("e=\"\u{e9}\"").unwrap(), ("e", "\u{e9}".to_owned(), ""));
        for broken in ["", "a", "a=\"b", "a=\"b\\"] {
            assert!(label(broken).is_none(), "{broken}");
        }
    }
}
