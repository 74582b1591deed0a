//! The fuzz targets of this crate over their first inputs, so that they keep compiling and holding.

use crate::support::{any_expression, any_rules};
use std::path::Path;

fn inputs(target: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).unwrap();
    // A fuzzer's own inputs stand beside the first ones, in any bytes.
    files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok()).collect()
}

#[test]
fn rules_in_any_order_give_one_answer() {
    let inputs = inputs("router");
    assert!(inputs.len() > 3);
    inputs.iter().for_each(|input| any_rules::check(input));
}

#[test]
fn expressions_have_one_answer_and_their_negation_the_other() {
    let inputs = inputs("expr");
    assert!(inputs.len() > 4);
    inputs.iter().for_each(|input| any_expression::check(input));
}
