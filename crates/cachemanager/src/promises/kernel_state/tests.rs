//! The table at the head of `promises/coherence.rs`, row by row.

use super::*;
use crate::promises::coherence::notice;
use crate::watcher::Notice;

/// A kernel that was given everything.
fn given() -> KernelState {
    KernelState {
        attributes: true,
        contents: true,
        least_length: Some(10),
        ..KernelState::default()
    }
}

#[test]
fn a_notice_is_owed_once_and_only_for_what_is_held() {
    let mut kernel = KernelState::default();
    assert_eq!(kernel.end(), Owed::NOTHING);
    kernel.attributes = true;
    assert_eq!(
        notice(kernel.end()).map(|n| matches!(n, Notice::Attributes)),
        Some(true)
    );
    let mut kernel = given();
    assert_eq!(kernel.end(), Owed::ALL);
    assert_eq!(kernel.end(), Owed::NOTHING);
    assert_eq!(kernel.notices, 1);
}

#[test]
fn news_for_which_nothing_asked_is_told() {
    let mut kernel = given();
    assert_eq!(kernel.new_version((10, 10)), Owed::ALL);
    assert!(!kernel.is_longer());
    assert_eq!(
        kernel.new_version((10, 1010)),
        Owed::NOTHING,
        "nothing is held"
    );
    assert!(kernel.is_longer(), "the kernel has a length all the same");
    let mut unknown = KernelState::default();
    assert_eq!(unknown.new_version((0, 1010)), Owed::NOTHING);
    assert!(!unknown.is_longer(), "the kernel has none");
}

#[test]
fn news_that_an_answer_brings_is_told_by_it() {
    // Another length: the kernel drops the pages when it takes the length.
    let mut kernel = given();
    kernel.requests = 1;
    assert_eq!(kernel.new_version((10, 1010)), Owed::NOTHING);
    assert_eq!(kernel.answer(1010, false), Owed::NOTHING);
    // The same length: a notice drops the pages before the answer.
    assert_eq!(kernel.new_version((1010, 1010)), Owed::NOTHING);
    assert_eq!(kernel.answer(1010, false), Owed::ALL);
    // Longer, and back again before the answer.
    let mut kernel = given();
    kernel.requests = 1;
    assert_eq!(kernel.new_version((10, 20)), Owed::NOTHING);
    assert_eq!(kernel.new_version((20, 10)), Owed::NOTHING);
    assert_eq!(kernel.answer(10, false), Owed::ALL);
    // The kernel may ignore the answer.
    let mut kernel = given();
    kernel.requests = 1;
    assert_eq!(kernel.new_version((10, 20)), Owed::NOTHING);
    assert_eq!(kernel.answer(20, true), Owed::ALL);
    // The kernel holds nothing about the file.
    let mut kernel = KernelState {
        contents: false,
        ..given()
    };
    kernel.requests = 1;
    assert_eq!(kernel.new_version((10, 10)), Owed::NOTHING);
    assert_eq!(kernel.answer(10, false), Owed::NOTHING);
}

#[test]
fn a_promise_that_ends_tells_what_a_question_found_out() {
    let mut kernel = given();
    kernel.requests = 1;
    assert_eq!(kernel.new_version((10, 10)), Owed::NOTHING);
    assert_eq!(kernel.end(), Owed::ALL);
    assert_eq!(kernel.answer(10, true), Owed::NOTHING);
}

#[test]
fn a_kernel_that_asks_nothing_is_told_a_few_times() {
    let mut kernel = KernelState::default();
    assert!(
        !kernel.may_renew(2),
        "it has no length that could be another"
    );
    let mut kernel = given();
    assert!(kernel.may_renew(2) && kernel.may_renew(2) && !kernel.may_renew(2));
    kernel.unasked = 0;
    assert!(kernel.may_renew(2));
}

#[test]
fn a_length_is_sent_only_if_the_kernel_may_have_a_smaller_one() {
    let mut kernel = KernelState::default();
    kernel.give_attributes(1_300_000, true);
    // The file shrinks and grows without a request of the kernel.
    let _owed = kernel.new_version((1_300_000, 5_000));
    let _owed = kernel.new_version((5_000, 8_000));
    assert!(!kernel.is_longer(), "the kernel has the first length");
    // A read that ends early lowers the kernel's length.
    kernel.lower_length(5_000);
    let _owed = kernel.new_version((5_000, 8_000));
    assert!(kernel.is_longer());
    kernel.length_sent(8_000);
    assert!(!kernel.is_longer());
    // The kernel may ignore attributes, and then has the lesser length.
    kernel.give_attributes(9_000, true);
    let _owed = kernel.new_version((8_000, 8_500));
    assert!(kernel.is_longer());
    // The answer that is not ignored has the length.
    assert_eq!(kernel.answer(8_500, false), Owed::NOTHING);
    let _owed = kernel.new_version((8_500, 8_400));
    assert!(!kernel.is_longer());
}
