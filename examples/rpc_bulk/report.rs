//! The report to the user at the end.

use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::HumanBytes;
use serde_json::Value;

/// Prints the contents of the JSON object, and more on the latency of empty calls.
pub fn print(result: &Value, of: &str, push: bool, time: Duration, latency: &Histogram<u64>) {
    let bytes = HumanBytes(result["bytes"].as_u64().unwrap_or(0));
    let gb_per_s = result["gb_per_s"].as_f64().unwrap_or(0.0);
    let digest = result["digest"].as_str().unwrap_or("");
    let how = if push { " and written back" } else { "" };
    let not = if result["verified"] == true {
        ""
    } else {
        "NOT "
    };
    println!("moved       {bytes} of {of}, read by the server{how}");
    println!("digest      {digest} (BLAKE3), {not}verified by the server");
    println!(
        "throughput  {gb_per_s:.2} GB/s ({:.3} s)",
        time.as_secs_f64()
    );
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    let (p50, p90, p99, p999) = (us(0.5), us(0.9), us(0.99), us(0.999));
    print!("empty call  p50 {p50:.1} µs, p90 {p90:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs");
    println!(" ({} calls)", latency.len());
    println!("backend     {}", result["backend"].as_str().unwrap_or(""));
}
