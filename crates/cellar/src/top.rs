//! `cellar top`: the volumes, users and client machines that cause the load of file servers.
//!
//! Each round reads the tables of all file servers in parallel. The screen shows the difference of
//! two rounds, so the first screen comes after one interval.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::time::Duration;

use cellar_admin::load::{self, Counts, LoadKind, Reading};
use cellar_admin::table::{Side, Table, short_size};
use cellar_admin::vos::Volumes;
use cellar_client::{Cell, Client};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::failure::{Failure, Outcome};
use crate::output::{errln, one_line, out, outln};
use crate::quantities;
use crate::session::{As, CellOptions, resolve};

/// The most lines of each kind if no option gives another number.
const LINES: usize = 10;

/// The longest time that a server or database has for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file server counts the calls of the volumes, users and client machines with the most calls, in
tables of a fixed size. Only superusers may read them. OpenAFS's servers do not have them.

OPS/S     calls a second that ended
BYTES/S   bytes of files a second that clients fetched or stored
BUSY      seconds of calls a second: 2.0 means that two calls ran all the time

Examples:
  cellar top                                    refresh every 5 seconds; Ctrl-C ends it
  cellar top --of clients --by bytes
  cellar top --fileserver 192.0.2.1 --interval 1s
  cellar top --once --json | jq '.volumes[0].name'"
)]
pub(crate) struct Options {
    #[command(flatten)]
    cell: CellOptions,
    /// Only this file server; may be repeated. Default: all file servers of the cell.
    #[arg(long, value_name = "ADDRESS")]
    fileserver: Vec<String>,
    /// Show only these.
    #[arg(long, value_enum)]
    of: Vec<Of>,
    /// The order.
    #[arg(long, value_enum, default_value_t = By::Operations)]
    by: By,
    /// The time between two screens.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = interval)]
    interval: Duration,
    /// The most lines of each kind. Default: 10, or as many as fit on the terminal.
    #[arg(long, value_name = "N")]
    lines: Option<usize>,
    /// Show one interval and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON object for each interval.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    Volumes,
    Users,
    Clients,
}

impl Of {
    fn kind(self) -> LoadKind {
        match self {
            Self::Volumes => LoadKind::Volumes,
            Self::Users => LoadKind::Users,
            Self::Clients => LoadKind::Clients,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Calls.
    #[value(name = "ops")]
    Operations,
    /// Bytes.
    Bytes,
    /// Time.
    Time,
}

impl By {
    fn of(self, counts: &Counts) -> u64 {
        match self {
            Self::Operations => counts.operations,
            Self::Bytes => counts.bytes,
            Self::Time => counts.micros,
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = quantities::time(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| format!("not a time above 0; {}", quantities::FORMS))
}

/// The readings of one round, by server and kind.
type Round = HashMap<(IpAddr, LoadKind), Reading>;

/// A line of the screen.
struct Row {
    key: [u32; 4],
    counts: Counts,
    name: String,
}

/// The load of one interval.
struct Screen {
    seconds: f64,
    servers: usize,
    kinds: Vec<(LoadKind, Vec<Row>)>,
    not_known: Vec<String>,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let session = options
        .cell
        .session(None, As::AdministratorIfPossible)
        .await?;
    let outcome = watch(&session.client, &session.cell, &options).await;
    // No file server was asked for a promise, so there is no goodbye that a silent one delays.
    drop(session);
    outcome
}

async fn watch(client: &Client, cell: &Cell, options: &Options) -> Outcome {
    let servers = servers(client, cell, options).await?;
    let kinds: Vec<LoadKind> = match options.of.is_empty() {
        true => LoadKind::ALL.to_vec(),
        false => options.of.iter().map(|of| of.kind()).collect(),
    };
    let (mut before, first_failures) = round(client, cell, &servers, &kinds).await;
    if before.is_empty() {
        let reasons = first_failures.join("; ");
        return Err(Failure::new(format!(
            "no file server reports its load: {reasons}. Superusers may read it: --localauth on a server, \
             or 'cellar login'"
        )));
    }
    let mut begun = Instant::now();
    let is_screen = std::io::stdout().is_terminal() && !options.json && !options.once;
    if is_screen {
        errln!("Measuring for {} s ...", options.interval.as_secs_f64());
    }
    loop {
        tokio::time::sleep_until(begun + options.interval).await;
        let (after, not_known) = round(client, cell, &servers, &kinds).await;
        let (now, earlier) = (Instant::now(), begun);
        begun = now;
        let mut screen = Screen {
            seconds: now.duration_since(earlier).as_secs_f64(),
            servers: servers.len(),
            kinds: Vec::new(),
            not_known,
        };
        // A rate needs two rounds, so a server that returns has none yet.
        let is_new = |server: &&IpAddr| {
            let has = |round: &Round| {
                kinds
                    .iter()
                    .any(|kind| round.contains_key(&(**server, *kind)))
            };
            has(&after) && !has(&before)
        };
        let new = servers.iter().filter(is_new);
        let sentence =
            |server| format!("file server {server}: it answers again, and its rates follow");
        screen.not_known.extend(new.map(sentence));
        let height = is_screen.then(terminal_height).flatten();
        let lines = lines(options.lines, height, kinds.len(), screen.not_known.len());
        for kind in &kinds {
            let rows = rows(&before, &after, *kind, options.by, lines);
            let rows = named(client, cell, *kind, rows).await;
            screen.kinds.push((*kind, rows));
        }
        before = after;
        if options.json {
            outln!("{}", screen.json());
        } else {
            if is_screen {
                // The cursor goes to the first line, and the rest of the terminal is erased.
                std::io::stdout().write_all(b"\x1b[H\x1b[J")?;
            }
            out!("{}", screen.text(cell));
        }
        if options.once {
            return Ok(());
        }
    }
}

async fn servers(client: &Client, cell: &Cell, options: &Options) -> Outcome<Vec<IpAddr>> {
    if options.fileserver.is_empty() {
        let listed = Volumes::new(client, cell).addresses().await?;
        let first = listed.iter().filter_map(|server| server.addresses.first());
        return Ok(first.copied().collect());
    }
    let named = options.fileserver.iter();
    named.map(|server| Ok(resolve(server)?.0)).collect()
}

/// Reads all tables of all servers. The failures of servers are sentences.
async fn round(
    client: &Client,
    cell: &Cell,
    servers: &[IpAddr],
    kinds: &[LoadKind],
) -> (Round, Vec<String>) {
    let asked = servers.iter().map(async |server| {
        let readings = kinds
            .iter()
            .map(|kind| load::read(client, cell, *server, *kind, PATIENCE));
        (*server, join_all(readings).await)
    });
    let (mut round, mut failures) = (Round::new(), Vec::new());
    for (server, readings) in join_all(asked).await {
        let mut failed = None;
        for (kind, reading) in kinds.iter().zip(readings) {
            match reading {
                Ok(reading) => drop(round.insert((server, *kind), reading)),
                Err(error) => failed = Some(error),
            }
        }
        failures.extend(failed.map(|error| format!("file server {server}: {error}")));
    }
    (round, failures)
}

/// The lines of each kind. The screen has a title; each kind has an empty line and a head, and each
/// unknown fact has an empty line too. The last line of the terminal is the cursor's.
fn lines(given: Option<usize>, height: Option<usize>, kinds: usize, not_known: usize) -> usize {
    let fitting = |height: usize| {
        let rest = height.saturating_sub(2 + 2 * kinds + 2 * not_known);
        (rest / kinds.max(1)).clamp(1, LINES)
    };
    given.unwrap_or_else(|| height.map_or(LINES, fitting))
}

/// The lines of the terminal, if it tells them.
fn terminal_height() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0).then_some(size.ws_row.into())
}

/// The first rows of a kind, over all servers that answered both rounds.
fn rows(before: &Round, after: &Round, kind: LoadKind, by: By, lines: usize) -> Vec<Row> {
    let mut sums: HashMap<[u32; 4], Counts> = HashMap::new();
    for (place, reading) in after.iter().filter(|((_, of), _)| *of == kind) {
        let Some(earlier) = before.get(place) else {
            continue;
        };
        for (key, counts) in load::between(earlier, reading) {
            let sum = sums.entry(key).or_default();
            sum.operations += counts.operations;
            sum.bytes += counts.bytes;
            sum.micros += counts.micros;
        }
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(key, counts)| (std::cmp::Reverse(by.of(counts)), *key));
    rows.truncate(lines);
    let row = |(key, counts)| Row {
        key,
        counts,
        name: String::new(),
    };
    rows.into_iter().map(row).collect()
}

async fn named(client: &Client, cell: &Cell, kind: LoadKind, mut rows: Vec<Row>) -> Vec<Row> {
    let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
    let names = load::names(client, cell, kind, &keys, PATIENCE).await;
    for (row, name) in rows.iter_mut().zip(names) {
        row.name = name;
    }
    rows
}

fn word(kind: LoadKind) -> &'static str {
    match kind {
        LoadKind::Volumes => "volumes",
        LoadKind::Users => "users",
        LoadKind::Clients => "clients",
    }
}

impl Screen {
    fn json(&self) -> Value {
        let rate = |count: u64| count as f64 / self.seconds;
        let mut object = json!({
            "schema": 1,
            "seconds": self.seconds,
            "servers": self.servers,
            "not_known": self.not_known,
        });
        for (kind, rows) in &self.kinds {
            let rows = rows.iter().map(|row| {
                json!({
                    "id": load::number(*kind, row.key),
                    "name": row.name,
                    "operations_per_second": rate(row.counts.operations),
                    "bytes_per_second": rate(row.counts.bytes),
                    "busy": rate(row.counts.micros) / 1e6,
                })
            });
            object[word(*kind)] = rows.collect();
        }
        object
    }

    fn text(&self, cell: &Cell) -> String {
        let mut text = format!(
            "Cell {}, file servers: {}, interval: {:.1} s\n",
            cell.name, self.servers, self.seconds
        );
        for (kind, rows) in &self.kinds {
            let head = match kind {
                LoadKind::Volumes => "Volume",
                LoadKind::Users => "User",
                LoadKind::Clients => "Client",
            };
            let mut table = Table::new([
                ("OPS/S", Side::Right),
                ("BYTES/S", Side::Right),
                ("BUSY", Side::Right),
                (head, Side::Left),
            ]);
            for row in rows {
                let rate = |count: u64| count as f64 / self.seconds;
                let id = load::number(*kind, row.key);
                let name = match row.name == id {
                    true => id,
                    false => format!("{} ({id})", one_line(&row.name)),
                };
                table.row([
                    format!("{:.1}", rate(row.counts.operations)),
                    short_size(rate(row.counts.bytes) as u64),
                    format!("{:.2}", rate(row.counts.micros) / 1e6),
                    name,
                ]);
            }
            text.push_str(&format!("\n{table}"));
        }
        for line in &self.not_known {
            text.push_str(&format!("\nnot known: {}\n", one_line(line)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_fits_on_its_terminal() {
        for (height, kinds, not_known, wanted) in [
            (24, 3, 0, 5),
            (24, 3, 2, 4),
            (24, 1, 0, 10),
            (100, 3, 0, 10),
            (5, 3, 0, 1),
        ] {
            let lines = lines(None, Some(height), kinds, not_known);
            assert_eq!(lines, wanted, "{height} {kinds} {not_known}");
            let used = 1 + kinds * (2 + lines) + 2 * not_known;
            assert!(used < height || lines == 1, "{height}: {used}");
        }
        assert_eq!(lines(None, None, 3, 0), LINES);
        assert_eq!(lines(Some(40), Some(24), 3, 0), 40);
    }

    #[test]
    fn a_server_without_an_earlier_round_has_no_rows() {
        let server = IpAddr::from([192, 0, 2, 1]);
        let counts = Counts {
            operations: 5,
            ..Counts::default()
        };
        let reading = Reading::from([([1, 0, 0, 0], counts)]);
        let place = (server, LoadKind::Volumes);
        let after = Round::from([(place, reading)]);
        let found = rows(&Round::new(), &after, LoadKind::Volumes, By::Operations, 9);
        assert!(found.is_empty());
        let before = Round::from([(place, Reading::new())]);
        let found = rows(&before, &after, LoadKind::Volumes, By::Operations, 9);
        assert_eq!(found.len(), 1);
    }
}
