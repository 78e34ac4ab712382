use std::time::{Duration, Instant};
use tokio_fabric::{Access, Backend, Endpoint, Event, Fabric, Hints, RemoteRegion};
use anyhow::Result;

fn cpu() -> Duration {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let v: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    Duration::from_millis((v[11].parse::<u64>().unwrap() + v[12].parse::<u64>().unwrap()) * 10)
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    match threads { 0 => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
      n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_all().build().unwrap() }
}
fn fabric(backend: &str) -> Result<Fabric> { Ok(Fabric::open(Hints::new().backend(backend))?) }

async fn echo(ep: Endpoint, n: usize, size: usize) -> Result<()> {
    let mut buf = vec![0; size];
    let mut out = vec![0u8; size];
    for _ in 0..n {
        let (_, b) = ep.recv(buf).await?; buf = b;
        out = ep.send(out).await?.1.into();
    }
    Ok(())
}
async fn ping(ep: Endpoint, n: usize, size: usize) -> Result<()> {
    let mut buf = vec![0; size];
    let mut out = vec![0u8; size];
    for _ in 0..n {
        out = ep.send(out).await?.1.into();
        let (_, b) = ep.recv(buf).await?; buf = b;
    }
    Ok(())
}
async fn serve(f: Fabric, conns: usize, n: usize, size: usize, tx: std::sync::mpsc::Sender<std::net::SocketAddr>) -> Result<()> {
    let domain = f.domain().open()?;
    let events = f.event_queue().open()?;
    let listener = f.passive_endpoint(&events).listen_at(([127,0,0,1],0).into())?;
    let region = domain.register(vec![0; 1<<20]).access(Access::REMOTE_READ|Access::REMOTE_WRITE).await?;
    println!("{}", listener.local_addr());
    tx.send(listener.local_addr())?;
    let mut tasks = Vec::new();
    while tasks.len() < conns {
        if let Some(Event::ConnRequest(request)) = events.next().await {
            let ep = request.accept(&domain).data(region.remote().to_bytes()).await?;
            tasks.push(tokio::spawn(async move { echo(ep.clone(), n, size).await?; let _ = ep.recv(vec![0;8]).await; anyhow::Ok(()) }));
        }
    }
    for t in tasks { t.await??; }
    Ok(())
}
async fn call(f: Fabric, to: std::net::SocketAddr, conns: usize, n: usize, size: usize, writes: usize) -> Result<String> {
    let domain = f.domain().open()?;
    let mut eps = Vec::new();
    for _ in 0..conns {
        let ep = domain.endpoint().open()?;
        let data = ep.connect(to).await?;
        eps.push((ep, RemoteRegion::from_bytes(&data)?));
    }
    let (c, t) = (cpu(), Instant::now());
    let mut tasks = Vec::new();
    for (ep, _) in &eps { let ep = ep.clone(); tasks.push(tokio::spawn(ping(ep, n, size))); }
    for t in tasks { t.await??; }
    let dt = t.elapsed(); let dc = cpu() - c;
    let total = (n * conns) as f64;
    let mut line = format!("conns {conns} size {size}: {:.2} us/rt, cpu {:.2} us/rt", dt.as_secs_f64()*1e6/total, dc.as_secs_f64()*1e6/total);
    if writes > 0 {
        let (ep, r) = &eps[0];
        let mut buf = vec![1u8; 1<<20];
        let (c,t) = (cpu(), Instant::now());
        for _ in 0..writes { buf = ep.write(buf, r.slice(0..1<<20)?).await?.1.into(); }
        let dt = t.elapsed(); let dc = cpu()-c;
        line += &format!("; write 1MiB {:.2} GB/s cpu {:.0} us", writes as f64 * 1048576.0/dt.as_secs_f64()/1e9, dc.as_secs_f64()*1e6/writes as f64);
        let (c,t) = (cpu(), Instant::now());
        for _ in 0..writes { buf = ep.read(buf, r.slice(0..1<<20)?).await?.1.into(); }
        let dt = t.elapsed(); let dc = cpu()-c;
        line += &format!("; read 1MiB {:.2} GB/s cpu {:.0} us", writes as f64 * 1048576.0/dt.as_secs_f64()/1e9, dc.as_secs_f64()*1e6/writes as f64);
    }
    for (ep, _) in &eps { ep.send("bye").await?; }
    Ok(line)
}
fn main() -> Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let backend = &a[2]; let conns: usize = a[3].parse()?; let n: usize = a[4].parse()?; let size: usize = a[5].parse()?; let threads: usize = a[6].parse()?; let writes: usize = a[7].parse()?;
    match a[1].as_str() {
        "one" => runtime(threads).block_on(async {
            let f = fabric(backend)?;
            let (tx, rx) = std::sync::mpsc::channel();
            let s = tokio::spawn(serve(f.clone(), conns, n, size, tx));
            let to = loop { if let Ok(to) = rx.try_recv() { break to } tokio::task::yield_now().await; };
            println!("{backend} one: {}", call(f, to, conns, n, size, writes).await?);
            s.await??; anyhow::Ok(())
        }),
        "serve" => runtime(threads).block_on(async { let (tx, _rx) = std::sync::mpsc::channel(); serve(fabric(backend)?, conns, n, size, tx).await }),
        _ => runtime(threads).block_on(async { let to = a[8].parse()?; println!("{backend} two: {}", call(fabric(backend)?, to, conns, n, size, writes).await?); anyhow::Ok(()) }),
    }
}
