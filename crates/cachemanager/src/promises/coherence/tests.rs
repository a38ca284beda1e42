//! The table at the head of `coherence.rs`, row by row.

use super::*;
use crate::kernel_state::Held;

/// A kernel that was given everything.
fn given() -> Held {
    Held {
        attributes: true,
        contents: true,
        has_length: true,
        ..Held::default()
    }
}

#[test]
fn a_notice_is_owed_once_and_only_for_what_is_held() {
    let mut held = Held::default();
    assert_eq!(held.end(), Owed::NOTHING);
    held.attributes = true;
    assert_eq!(
        held.end().notice().map(|n| matches!(n, Notice::Attributes)),
        Some(true)
    );
    let mut held = given();
    assert_eq!(held.end(), Owed::ALL);
    assert_eq!(held.end(), Owed::NOTHING);
    assert_eq!(held.notices, 1);
}

#[test]
fn news_for_which_nothing_asked_is_told() {
    let mut held = given();
    assert_eq!(held.news((10, 10)), Owed::ALL);
    assert!(!held.is_longer());
    assert_eq!(held.news((10, 1010)), Owed::NOTHING, "nothing is held");
    assert!(held.is_longer(), "the kernel has a length all the same");
    let mut unknown = Held::default();
    assert_eq!(unknown.news((0, 1010)), Owed::NOTHING);
    assert!(!unknown.is_longer(), "the kernel has none");
}

#[test]
fn news_that_an_answer_brings_is_told_by_it() {
    // Another length: the kernel drops the pages when it takes the length.
    let mut held = given();
    held.questions = 1;
    assert_eq!(held.news((10, 1010)), Owed::NOTHING);
    assert_eq!(held.answer(1010, false), Owed::NOTHING);
    // The same length: a notice drops the pages before the answer.
    assert_eq!(held.news((1010, 1010)), Owed::NOTHING);
    assert_eq!(held.answer(1010, false), Owed::ALL);
    // Longer, and back again before the answer.
    let mut held = given();
    held.questions = 1;
    assert_eq!(held.news((10, 20)), Owed::NOTHING);
    assert_eq!(held.news((20, 10)), Owed::NOTHING);
    assert_eq!(held.answer(10, false), Owed::ALL);
    // The kernel may ignore the answer.
    let mut held = given();
    held.questions = 1;
    assert_eq!(held.news((10, 20)), Owed::NOTHING);
    assert_eq!(held.answer(20, true), Owed::ALL);
    // The kernel holds nothing about the file.
    let mut held = Held {
        contents: false,
        ..given()
    };
    held.questions = 1;
    assert_eq!(held.news((10, 10)), Owed::NOTHING);
    assert_eq!(held.answer(10, false), Owed::NOTHING);
}

#[test]
fn a_promise_that_ends_tells_what_a_question_found_out() {
    let mut held = given();
    held.questions = 1;
    assert_eq!(held.news((10, 10)), Owed::NOTHING);
    assert_eq!(held.end(), Owed::ALL);
    assert_eq!(held.answer(10, true), Owed::NOTHING);
}

#[test]
fn a_kernel_that_asks_nothing_is_told_a_few_times() {
    let mut held = Held::default();
    assert!(!held.may_renew(2), "it has no length that could be another");
    let mut held = given();
    assert!(held.may_renew(2) && held.may_renew(2) && !held.may_renew(2));
    held.unasked = 0;
    assert!(held.may_renew(2));
}
