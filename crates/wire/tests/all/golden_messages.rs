//! Messages that OpenAFS's programs and servers sent (`testdata/messages`). Each decodes to its
//! last byte and encodes to the same bytes.
//!
//! There is one exception (CreateEntryN). In the slots after the count of an entry's sites, `vos`
//! sends the old contents of its memory. Cellar writes zeros there.

use crate::packages::all_messages;

fn unhex(text: &str) -> Vec<u8> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    pairs
        .iter()
        .map(|[high, low]| digit(*high) << 4 | digit(*low))
        .collect()
}

#[test]
fn recorded_messages_are_read_and_written_the_same() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/messages/openafs-1.8.9.txt"
    );
    let recorded = std::fs::read_to_string(path).expect("the recording");
    let messages = all_messages();
    let mut wrong = Vec::new();
    for line in recorded.lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (package, opcode, direction) = (word(), word(), word());
        let bytes = unhex(word());
        let is_reply = direction == "results";
        let message = messages.iter().find(|message| {
            message.package.name == package
                && message.procedure.opcode.to_string() == opcode
                && message.is_reply == is_reply
        });
        let message = message.unwrap_or_else(|| panic!("{package} {opcode} is not declared"));
        match message.decode(&bytes) {
            Err(error) => wrong.push(format!("{}: {error}", message.name())),
            Ok(decoded) if message.procedure.name == "CreateEntryN" && !is_reply => {
                assert_eq!(decoded.canonical.len(), bytes.len());
            }
            Ok(decoded) => {
                let differs = (0..bytes.len().max(decoded.canonical.len()))
                    .step_by(4)
                    .find(|&at| bytes.get(at..at + 4) != decoded.canonical.get(at..at + 4));
                if let Some(at) = differs {
                    let name = message.name();
                    wrong.push(format!("{name}: word {} of {}", at / 4, bytes.len() / 4));
                }
            }
        }
    }
    assert!(recorded.lines().count() > 140);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
