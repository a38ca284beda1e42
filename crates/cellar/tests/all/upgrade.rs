//! Cells of earlier releases under this program (`testdata/cells`). The cell of 05f1d99 is in
//! `missing.rs`.

use crate::common::Cell;

/// The contents of `large` and `object`.
fn filled(letter: char, bytes: usize) -> String {
    letter.to_string().repeat(bytes)
}

#[test]
fn a_cell_of_0_1_0_is_whole_after_a_kill() {
    let mut cell = Cell::of_release("0.1.0");
    for start in ["the first", "another"] {
        cell.start();
        let top = "/afs/old.cell/scratch";
        let cat = |path: &str| cell.ok(&format!("cat --admin {top}/{path}"));
        for folder in ["", "onb/"] {
            assert_eq!(cat(&format!("{folder}small")), "a small file\n", "{start}");
            assert_eq!(cat(&format!("{folder}large")), filled('x', 100_000));
        }
        // Stored after the last clean stop: in the journal alone.
        assert_eq!(cat("journal"), "a small file\n");
        // The devices have other ports than in the fixture, and the file server hears of them.
        let object = cellar_until::until_some_blocking("the devices", || {
            let words = ["cat", "--admin", "/afs/old.cell/scratch/objects/object"];
            let answer = cell.run(words);
            (answer.status == 0).then_some(answer.out)
        });
        assert_eq!(object, filled('y', 3_000_000));
        let members = cell.ok("pts membership alice:friends");
        assert!(members.contains("bob"), "{members}");
        assert!(cell.ok("fs listacl onb").contains("alice:friends rlidwk"));
        let entry = cell.ok("vos examine scratch");
        assert!(entry.contains("Backup:"), "{entry}");
        let released = cell.ok("vos examine objects");
        assert!(released.contains("RO Site"), "{released}");
        // The state goes on from there.
        cell.ok("vos backup scratch");
        cell.ok("vos release objects");
        cell.end("-INT");
        let check = cell.ok("db check");
        assert_eq!(check.matches("undamaged;").count(), 2, "{check}");
    }
}
