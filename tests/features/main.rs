//! Holds the ledger of libfabric's promises against the tests that it names, and docs/features.md,
//! the page that people read, against the ledger and the crate.
//!
//! Both are claims about the library; this program is what keeps them honest. The parsing is
//! strict: a line that looks like a row and is not one is a complaint, never skipped. How a row is
//! written stands at the top of `ledger.txt`.

mod aliases;
mod checker;
mod exports;
mod ledger;
mod page;
mod shown;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use exports::Exports;
use ledger::Ledger;
use shown::Sources;

/// The functions in the synopses of fi_domain(3), fi_mr(3), fi_av(3), fi_endpoint(3), fi_cm(3),
/// fi_msg(3), fi_tagged(3), fi_rma(3), fi_cq(3), fi_cntr(3) and fi_eq(3) of libfabric 1.17.
const CALLS: &str = "
    fi_domain fi_domain2 fi_domain_bind fi_open_ops fi_set_ops fi_close
    fi_mr_bind fi_mr_desc fi_mr_enable fi_mr_key fi_mr_map_raw fi_mr_raw_attr fi_mr_refresh
    fi_mr_reg fi_mr_regattr fi_mr_regv fi_mr_unmap_key
    fi_av_bind fi_av_insert fi_av_insertsvc fi_av_insertsym fi_av_lookup fi_av_open fi_av_remove
    fi_av_straddr fi_rx_addr
    fi_cancel fi_control fi_enable fi_endpoint fi_endpoint2 fi_ep_alias fi_ep_bind fi_getopt
    fi_passive_ep fi_pep_bind fi_rx_context fi_rx_size_left fi_scalable_ep fi_scalable_ep_bind
    fi_setopt fi_srx_context fi_stx_context fi_tc_dscp_get fi_tc_dscp_set fi_tx_context
    fi_tx_size_left fi_accept fi_connect fi_getname fi_getpeer fi_join fi_listen fi_mc_addr
    fi_reject fi_setname fi_shutdown
    fi_inject fi_injectdata fi_recv fi_recvmsg fi_recvv fi_send fi_senddata fi_sendmsg fi_sendv
    fi_tinject fi_tinjectdata fi_trecv fi_trecvmsg fi_trecvv fi_tsend fi_tsenddata fi_tsendmsg
    fi_tsendv fi_inject_write fi_inject_writedata fi_read fi_readmsg fi_readv fi_write
    fi_writedata fi_writemsg fi_writev
    fi_cq_open fi_cq_read fi_cq_readerr fi_cq_readfrom fi_cq_signal fi_cq_sread fi_cq_sreadfrom
    fi_cq_strerror fi_cntr_add fi_cntr_adderr fi_cntr_open fi_cntr_read fi_cntr_readerr
    fi_cntr_set fi_cntr_seterr fi_cntr_wait fi_eq_open fi_eq_read fi_eq_readerr fi_eq_sread
    fi_eq_strerror fi_eq_write";

/// No row is ever dropped: the ledger may only grow, and this number grows with it.
const ROW_COUNT_MIN: usize = 931;

/// Every row of the ledger that is shown is shown by tests that quote it, and no test quotes what
/// is not.
#[test]
fn the_ledger_agrees_with_the_tests() {
    let mut complaints = Vec::new();
    let ledger = read_ledger(&mut complaints);
    let mut sources = Sources::new();
    for folder in ["src", "tests"] {
        for (path, text) in rust_files(folder) {
            sources.insert(format!("{folder}/{path}"), shown::functions(&text));
        }
    }
    ledger::check_rows(&ledger, ROW_COUNT_MIN, &mut complaints);
    ledger::check_reasons(&ledger, &mut complaints);
    for row in &ledger.rows {
        shown::check_row(row, &sources, &mut complaints);
    }
    shown::check_quotations(&ledger, &sources, &mut complaints);
    expect_none(complaints);
}

/// The page has the ledger's counts and states and names only what the crate exports, and each
/// decline has its paragraph. With `TOKIO_FABRIC_COUNTS=1` the page's counts become the ledger's.
#[test]
fn the_page_agrees_with_the_ledger_and_the_crate() {
    const PAGE: &str = "docs/features.md";
    let mut complaints = Vec::new();
    let ledger = read_ledger(&mut complaints);
    let mut page = read(PAGE);
    if std::env::var_os("TOKIO_FABRIC_COUNTS").is_some() {
        page = page::with_counts(&page, &ledger).expect("the page has a table of counts");
        fs::write(root().join(PAGE), &page).expect("the page can be written");
    }
    let exports = Exports::new(&rust_files("src").into_iter().collect());
    page::check_page(&page, &ledger, &exports, &mut complaints);
    page::check_declined(&read("docs/declined.md"), &page, &ledger, &mut complaints);
    print!("{}", page::counts(&ledger));
    expect_none(complaints);
}

/// Names of libfabric's lead to items, in the documentation's search too; and the table for those
/// who come from it has every call of these manual pages.
#[test]
fn names_of_libfabric_lead_to_items() {
    let files: HashMap<String, String> = rust_files("src").into_iter().collect();
    let aliases = aliases::aliases(files.values().map(String::as_str));
    let mut complaints = Vec::new();
    let table = read("docs/guide/from-libfabric.md");
    for page in [&read("docs/features.md"), &table] {
        aliases::check(page, &aliases, &mut complaints);
    }
    let aliased = aliases::aliased(files.values().map(String::as_str));
    aliases::check_rows(&table, &aliased, &mut complaints);
    aliases::check_items(&table, &Exports::new(&files), &mut complaints);
    let listed: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let calls = CALLS.split_whitespace();
    let missing = calls.filter(|call| !listed.contains(call));
    complaints.extend(missing.map(|call| format!("from-libfabric.md: no `{call}`")));
    expect_none(complaints);
}

fn read_ledger(complaints: &mut Vec<String>) -> Ledger {
    ledger::parse(&read("tests/features/ledger.txt"), complaints)
}

#[track_caller]
fn expect_none(mut complaints: Vec<String>) {
    complaints.sort();
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Rust files below a folder, by path from there.
fn rust_files(folder: &str) -> HashMap<String, String> {
    let top = root().join(folder);
    let mut files = HashMap::new();
    let mut folders: Vec<PathBuf> = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let name = path.strip_prefix(&top).expect("it is below the folder");
                let name = name.to_str().expect("names of files are UTF-8");
                let text = fs::read_to_string(&path).expect("a source file is text");
                files.insert(name.to_owned(), text);
            }
        }
    }
    files
}
