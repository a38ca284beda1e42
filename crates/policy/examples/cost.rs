//! The cost of policies at the creation of a file, in evaluations per second of 1 to 200 rules with
//! globs and expressions. The names match none, the last, or all of them.
//!
//! `cargo run --profile dist -p cellar-policy --example cost`

use std::hint::black_box;
use std::time::Instant;

use cellar_policy::{Facts, Policies, Policy};

const EVALUATIONS: u32 = 200_000;

/// Rules of which a half asks a glob, a quarter an expression, and a quarter size and group.
fn policies(rules: usize) -> Policies {
    let text: String = (0..rules)
        .map(|n| match n % 4 {
            0 => format!("~'*.ext{n}' => osd, stripes=2;\n"),
            1 => format!("~/\\.(raw|h{n}|run[0-9]+)$/i => osd, copies=2;\n"),
            2 => format!("~'run{n}-*.dat' & >1m => dynamic;\n"),
            _ => format!(">{n}g & gid=-{n} | uid={n} => local, stop;\n"),
        })
        .collect();
    let policy = Policy::parse(&text).expect("a policy");
    Policies::of(vec![(2, "cost".into(), policy)]).expect("policies")
}

fn main() {
    println!(
        "{:>6} {:>22} {:>12} {:>10}",
        "rules", "name", "matched", "ns each"
    );
    for rules in [1, 10, 50, 200] {
        let policies = policies(rules);
        let last = format!("a.ext{}", (rules - 1) / 4 * 4);
        for name in ["no-match.txt", &last, "event_2026-11-21.raw"] {
            let facts = Facts {
                name: name.as_bytes(),
                directory: b"/",
                size: 8 << 20,
                ids: &[1001, -205, -101, -102],
                ..Facts::default()
            };
            let matched = policies.evaluate(&[2], &facts).why.len();
            let begin = Instant::now();
            for _ in 0..EVALUATIONS {
                black_box(policies.evaluate(black_box(&[2]), black_box(&facts)));
            }
            let each = begin.elapsed().as_nanos() / u128::from(EVALUATIONS);
            println!("{rules:>6} {name:>22} {matched:>12} {each:>10}");
        }
    }
}
