//! Runs the models whose names have the given words in them, or all, and says how many executions
//! each explored.

use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let begun = Instant::now();
    let (mut models, mut executions) = (0, 0);
    for model in fabric_models::models::all() {
        if !words.iter().all(|word| model.name.contains(word.as_str())) {
            continue;
        }
        let begun = Instant::now();
        println!("{}", model.name);
        let count = model.run();
        println!(
            "    {count} executions, {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        models += 1;
        executions += count;
    }
    assert!(models > 0, "no model has {words:?} in its name");
    let seconds = begun.elapsed().as_secs_f64();
    println!("{models} models, {executions} executions, {seconds:.1} s");
}
