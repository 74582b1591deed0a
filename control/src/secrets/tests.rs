use std::sync::Mutex;

use model::{Key, Kind};
use serde_json::json;

use super::*;

/// The token of a manager that never answers.
const HANGS: &str = "hangs";

/// Answers from a table, each after so long; notes what it was asked.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<HashMap<String, Result<String, Failure>>>,
    asked: Mutex<Vec<String>>,
    takes: Mutex<Duration>,
}

impl Managers for Script {
    fn fetch(&self, manager: &SecretManager, key: &str) -> Fetching {
        let SecretManager::Vault(vault) = manager else { panic!("not asked here") };
        self.asked.lock().unwrap().push(format!("{} {key}", vault.token));
        let missing = || Err(Failure::Missing("none".to_owned()));
        let answer = self.answers.lock().unwrap().get(key).cloned().unwrap_or_else(missing);
        let takes = match vault.token.as_str() {
            HANGS => Duration::MAX,
            _ => *self.takes.lock().unwrap(),
        };
        Box::pin(async move {
            tokio::time::sleep(takes).await;
            answer
        })
    }
}

impl Script {
    fn set(&self, key: &str, answer: Result<&str, Failure>) {
        self.answers.lock().unwrap().insert(key.to_owned(), answer.map(str::to_owned));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn managers(token: &str) -> Configured {
    [manager("vault/1", token)].into()
}

fn manager(id: &str, token: &str) -> (String, Arc<Entry>) {
    let value = json!({"uri": "http://vault", "prefix": "kv", "token": token});
    let resource = Resource::parse(Kind::Secret, id, &value).unwrap();
    (id.to_owned(), Arc::new(Entry::new(Key::new(Kind::Secret, id), resource, 1, 1)))
}

fn wanted(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| at(key)).collect()
}

fn at(key: &str) -> String {
    format!("$secret://vault/1/{key}")
}

fn secrets(script: &Arc<Script>) -> Secrets {
    let env = Arc::new(|name: &str| (name == "TOKEN").then(|| "from-env".to_owned()));
    Secrets::new(script.clone(), env, Settings::default())
}

/// Returns the secrets that change within `seconds`.
async fn within(secrets: &mut Secrets, seconds: u64) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut changed = Vec::new();
    while let Ok(reference) = tokio::time::timeout_at(end, secrets.changed()).await {
        changed.push(reference);
    }
    changed
}

#[tokio::test(start_paused = true)]
async fn values_are_fetched_once_and_again_when_their_time_is_over() {
    let script = Arc::new(Script::default());
    script.set("a/b", Ok("one"));
    let mut secrets = secrets(&script);
    let values = secrets.values();
    secrets.want(&wanted(&["a/b", "a/c"]), managers("$env://TOKEN"));
    assert!(!secrets.is_settled());
    assert_eq!(values.get(&at("a/b")), Err("it was not fetched yet".to_owned()));
    let mut changed = within(&mut secrets, 0).await;
    changed.sort();
    assert_eq!(changed, [at("a/b"), at("a/c")]);
    assert!(secrets.is_settled());
    assert_eq!(
        (values.get(&at("a/b")), values.get(&at("a/c"))),
        (Ok("one".to_owned()), Err("none".to_owned()))
    );
    assert_eq!((secrets.counts(), secrets.failing()), ((2, 1), vec![(at("a/c"), "none".to_owned())]));
    assert_eq!(script.asked(), ["from-env a/b", "from-env a/c"]);
    // The same is wanted again: nothing is asked. Secrets no longer wanted are forgotten.
    secrets.want(&wanted(&["a/b"]), managers("$env://TOKEN"));
    assert_eq!(within(&mut secrets, 200).await, [""; 0]);
    assert_eq!((script.asked().len(), secrets.counts()), (0, (1, 0)));
    script.set("a/b", Ok("two"));
    assert_eq!(within(&mut secrets, 150).await, [at("a/b")]);
    assert_eq!(values.get(&at("a/b")), Ok("two".to_owned()));
    secrets.want(&BTreeSet::new(), managers("t"));
    assert!(values.get(&at("a/b")).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_last_value_stays_while_the_manager_is_gone_and_goes_when_it_says_so() {
    let script = Arc::new(Script::default());
    script.set("a/b", Ok("one"));
    let mut secrets = secrets(&script);
    let values = secrets.values();
    secrets.want(&wanted(&["a/b"]), managers("t"));
    within(&mut secrets, 1).await;
    script.set("a/b", Err(Failure::Unavailable("status 503".to_owned())));
    assert_eq!(within(&mut secrets, 600).await, [""; 0]);
    assert_eq!(values.get(&at("a/b")), Ok("one".to_owned()));
    assert_eq!(secrets.failing(), [(at("a/b"), "status 503".to_owned())]);
    // Asked ever more slowly, but at least once a minute.
    let asked = script.asked().len();
    assert!((8..20).contains(&asked), "{asked}");
    script.set("a/b", Ok("two"));
    assert_eq!(within(&mut secrets, 61).await, [at("a/b")]);
    assert_eq!(secrets.failing(), []);
    // An empty secret is invalid.
    script.set("a/b", Ok(""));
    assert_eq!(within(&mut secrets, 301).await, [at("a/b")]);
    assert_eq!(values.get(&at("a/b")), Err("it is empty".to_owned()));
    script.set("a/b", Ok("two"));
    assert_eq!(within(&mut secrets, 61).await, [at("a/b")]);
    script.set("a/b", Err(Failure::Missing("status 404".to_owned())));
    assert_eq!(within(&mut secrets, 301).await, [at("a/b")]);
    assert_eq!(values.get(&at("a/b")), Err("status 404".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_changed_manager_is_asked_at_once_and_older_answers_do_not_count() {
    let script = Arc::new(Script::default());
    script.set("a/b", Ok("old"));
    let mut secrets = secrets(&script);
    let values = secrets.values();
    // Without a manager the secret cannot be fetched.
    secrets.want(&wanted(&["a/b"]), BTreeMap::new());
    assert_eq!(within(&mut secrets, 0).await, [at("a/b")]);
    assert_eq!(values.get(&at("a/b")), Err(format!("no secret conf, secret_uri: {}", at("a/b"))));
    *script.takes.lock().unwrap() = Duration::from_secs(2);
    secrets.want(&wanted(&["a/b"]), managers("one"));
    assert_eq!(within(&mut secrets, 1).await, [""; 0]);
    script.set("a/b", Ok("new"));
    secrets.want(&wanted(&["a/b"]), managers("two"));
    assert_eq!(within(&mut secrets, 10).await, [at("a/b")]);
    assert_eq!(values.get(&at("a/b")), Ok("new".to_owned()));
    assert_eq!(script.asked(), ["one a/b", "two a/b"]);
    // One that does not answer is given up.
    *script.takes.lock().unwrap() = Duration::from_secs(100);
    secrets.want(&wanted(&["a/b"]), managers("three"));
    assert!(!secrets.is_settled());
    assert_eq!(within(&mut secrets, 6).await, [""; 0]);
    assert!(secrets.is_settled() && values.get(&at("a/b")).is_ok());
    assert_eq!(secrets.failing(), [(at("a/b"), "no answer within 5 s".to_owned())]);
    // A manager that was deleted keeps nothing.
    secrets.want(&wanted(&["a/b"]), BTreeMap::new());
    assert_eq!(within(&mut secrets, 1).await, [at("a/b")]);
    assert!(values.get(&at("a/b")).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_hangs_holds_up_no_other() {
    let script = Arc::new(Script::default());
    script.set("a/b", Ok("one"));
    let mut secrets = secrets(&script);
    let values = secrets.values();
    let good = "$secret://vault/z-good/a/b".to_owned();
    let mut wanted: BTreeSet<String> = (0..100).map(|at| format!("$secret://vault/a-hung/{at}/b")).collect();
    wanted.insert(good.clone());
    let both = |token: &str| Configured::from([manager("vault/a-hung", token), manager("vault/z-good", "t")]);
    secrets.want(&wanted, both(HANGS));
    assert_eq!(within(&mut secrets, 0).await, std::slice::from_ref(&good));
    assert_eq!(values.get(&good), Ok("one".to_owned()));
    assert_eq!(script.asked().len(), Settings::default().max_requests + 1);
    // A change waits once for what hangs, and later ones for what they are the first to refer to.
    assert!(!secrets.is_settled());
    secrets.stop_waiting();
    secrets.want(&wanted, both(HANGS));
    assert!(secrets.is_settled());
    wanted.insert("$secret://vault/z-good/new/b".to_owned());
    secrets.want(&wanted, both(HANGS));
    assert!(!secrets.is_settled());
    // It is read again in its time.
    script.set("a/b", Ok("two"));
    within(&mut secrets, 310).await;
    assert_eq!(values.get(&good), Ok("two".to_owned()));
    // One that is mended is asked at once: questions from before take no room.
    script.asked();
    secrets.want(&wanted, both("t"));
    within(&mut secrets, 0).await;
    assert_eq!(script.asked().iter().filter(|asked| !asked.contains("a/b")).count(), 100);
}

#[test]
fn values_are_in_no_debug_text() {
    let secrets = Secrets::default();
    secrets.values().set("$secret://vault/1/a/b", Ok("hush".to_owned()));
    assert!(!format!("{secrets:?} {:?}", secrets.values()).contains("hush"));
}
