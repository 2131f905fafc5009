"""How the timeline looks: its style sheet, light and dark, narrow and wide."""

STYLE = """\
:root { --paper: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --lane: #f6f8fa;
  --good: #2f81b7; --bad: #b3261e; --open: #7a5c00; --open-fill: #f3e3b0; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1216; --ink: #e6e9ed; --soft: #9aa4af; --line: #2c333b;
  --lane: #171b21; --good: #58a6d8; --bad: #ff7b72; --open: #e3b341; --open-fill: #3b3113; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 2rem; max-width: 100rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.25rem; margin: 0 0 .2rem; } h1 span { white-space: nowrap; }
h2 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; }
p { margin: .4rem 0 .8rem; color: var(--soft); } .empty { margin-top: 2rem; font-size: 1.1rem; }
.legend { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; font-size: .85rem; }
.legend span { display: inline-flex; align-items: center; gap: .45rem; }
.legend b { position: relative; width: 1.6rem; height: .8rem; top: 0; }
.legend .missed { position: static; transform: none; }
.lane { display: grid; grid-template-columns: var(--label) 1fr; column-gap: .8rem; align-items: center;
  padding: .15rem 0; }
.key { font-weight: 600; font-size: .85rem; overflow-wrap: anywhere; text-align: right; }
.key small { font-weight: 400; color: var(--soft); }
.track { position: relative; height: calc(var(--rows, 1) * 16px + 10px); background: var(--lane); border-radius: 3px; }
.track > div { position: absolute; inset: 0 14px 0 7px; }
.axis .track { height: 1.4rem; background: none; }
.axis span { position: absolute; bottom: 0; padding-left: .25rem; border-left: 1px solid var(--line);
  font-size: .75rem; color: var(--soft); white-space: nowrap; }
.track s { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--line); }
b { position: absolute; top: calc(5px + var(--row, 0) * 16px + 2px); height: 12px; min-width: 3px; border-radius: 2px; }
b.good { background: var(--good); }
b.bad { background: repeating-linear-gradient(135deg, var(--bad) 0 4px, var(--paper) 4px 6px);
  border: 1px solid var(--bad); min-width: 12px; z-index: 1; }
b.open { background: var(--open-fill); border: 1px dashed var(--open); min-width: 12px; z-index: 1; }
u { position: absolute; left: 0; top: 0; width: 10px; height: 10px; text-decoration: none; text-align: center;
  font: 700 10px/10px system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: var(--paper); }
.missed { position: absolute; top: calc(50% - 6px); width: 12px; height: 12px; transform: translateX(-50%);
  border: 2px solid var(--bad); border-radius: 50%; background: var(--paper); z-index: 2; }
ul { margin: 0; padding: 0; list-style: none; } li { padding: .1rem 0; overflow-wrap: anywhere; }
time { display: inline-block; min-width: 7rem; color: var(--soft); font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) { .lane { grid-template-columns: 1fr; } .key { text-align: left; }
  .axis .minor { display: none; } body { padding: .8rem; } }
"""
