"""`legato bench`: measure models, servers and this machine."""

from legato.cli import bench_compare, bench_local, bench_machine, bench_serve
from legato.cli.flags import Commands

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure models, servers and this machine, in reproducible ways")
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    bench_local.add_to(kinds)
    bench_compare.add_to(kinds)
    bench_serve.add_to(kinds)
    bench_machine.add_to(kinds)
