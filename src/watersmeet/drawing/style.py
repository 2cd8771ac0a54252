"""How a picture of lives looks, on light and on dark ground.

Colours tell the sides apart and are those of Okabe and Ito, which everybody can; what became of a row is told by shapes
and words, so that nothing is lost without colours.
"""

from __future__ import annotations

SIDES = 4
"""How many sides have a colour of their own; further ones begin again."""

STYLE = """
.lives text { font: 12px Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #1f2328 }
.lives .title { font-size: 16px; font-weight: bold } .lives .small { font-size: 10.5px }
.lives .said, .lives .small, .lives .head { fill: #59636e } .lives .key { font-weight: bold }
.lives .ground { fill: #ffffff } .lives .band { fill: #f3f5f7 } .lives .grid { stroke: #dfe4e9 }
.lives .axis { stroke: #818b98 } .lives .rule { stroke: #d1d9e0 }
.lives .life { stroke-linecap: butt; stroke-width: 8; stroke: currentColor; opacity: 0.55 }
.lives .shape { fill: none; stroke: #1f2328; stroke-width: 2 }
.lives .dot, .lives .arrow { fill: currentColor; stroke: none }
.lives .dot.start { stroke: #ffffff; stroke-width: 1 }
.lives .ring { fill: #ffffff; stroke: currentColor; stroke-width: 2.5 }
.lives .cross { stroke: #b3261e; stroke-width: 2.5 }
.lives .cap, .lives .gate { stroke: currentColor; stroke-width: 2.5 }
.lives .dash { stroke: #818b98 }
.lives .link { stroke: #1f2328; stroke-width: 1.5 } .lives .knot { fill: #1f2328; stroke: #ffffff; stroke-width: 1 }
.lives .track { stroke: currentColor; opacity: 0.35 }
.lives .mark { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 5 3 }
.lives .past { stroke-width: 1; stroke-dasharray: 1 4 } .lives .tip { fill: currentColor }
.lives .side0 { color: #0072b2 } .lives .side1 { color: #d55e00 } .lives .side2 { color: #00835f }
.lives .side3 { color: #a8457f } .lives .none { color: #59636e }
.lives .name { fill: currentColor; font-weight: bold }
@media (prefers-color-scheme: dark) {
.lives text { fill: #f0f6fc } .lives .said, .lives .small, .lives .head { fill: #9198a1 }
.lives .ground { fill: #0d1117 } .lives .band { fill: #161b22 } .lives .grid { stroke: #262c36 }
.lives .axis { stroke: #818b98 } .lives .rule { stroke: #30363d } .lives .shape { stroke: #f0f6fc }
.lives .dot, .lives .arrow { stroke: none } .lives .dot.start { stroke: #0d1117 }
.lives .ring { fill: #0d1117; stroke: currentColor }
.lives .cross { stroke: #ff8a80 } .lives .cap, .lives .gate { stroke: currentColor } .lives .dash { stroke: #9198a1 }
.lives .link { stroke: #f0f6fc } .lives .knot { fill: #f0f6fc; stroke: #0d1117 }
.lives .side0 { color: #56b4e9 } .lives .side1 { color: #f0a23c } .lives .side2 { color: #2fc79b }
.lives .side3 { color: #e08fbf } .lives .none { color: #9198a1 } .lives .name { fill: currentColor }
}
""".strip()
"""The rules of it. A page that shows the picture has them in a file, since its policy allows no other."""
