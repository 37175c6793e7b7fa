"""The mutants: one wrong edit each, and the tests that should notice it.

An edit is described by its code alone, found by a search over the whole package: files may be moved and renamed. A
snippet must occur exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

TESTS: dict[str, tuple[str, ...]] = {
    "operators": ("operators/test_structure.py", "operators/test_properties.py", "operators/test_exponent_scaling.py"),
    "arranged": ("network/test_attention_products.py", "network/test_exact.py"),
    "large": ("layer/test_large_paths.py", "operators/test_structure.py", "operators/test_properties.py"),
    "layer": ("layer/test_tangent.py", "layer/test_dense.py", "layer/test_witnesses.py"),
    "rotary": ("layer/test_rotary.py",),
    "query-key": ("layer/test_query_key.py",),
    "attention": ("attention/test_layers.py", "attention/test_activations.py", "layer/test_tangent.py"),
    "moments": ("attention/test_moments.py",),
    "losses": ("losses/test_losses.py", "layer/test_tangent.py"),
    "products": (
        "curvature/test_linearisation.py",
        "curvature/test_data_and_precision.py",
        "curvature/test_agreement.py",
    ),
    "fused end": ("models/test_adapters_logits.py", "losses/test_linear_cross_entropy.py"),
    "verification": ("curvature/test_verification.py", "curvature/test_refused.py", "derivatives/test_difference.py"),
    "steps": ("derivatives/test_step_check.py",),
    "probes": ("spectra/test_probes.py", "spectra/test_sampling.py"),
    "intervals": ("spectra/test_intervals.py", "spectra/test_coverage.py", "spectra/test_sampling.py"),
    "spectra": ("spectra/test_density.py", "spectra/test_input.py", "spectra/test_heterogeneity.py"),
    "last attention": ("network/test_exact.py", "network/test_part_norms.py", "network/test_parts.py"),
    "linear maps": ("network/test_linear_maps.py", "network/test_backpropagated_curvature.py"),
    "readout": ("network/test_readout.py",),
    "backpropagation": ("network/test_backpropagated_curvature.py", "network/test_linear_maps.py"),
    "chain": ("hessianlab/test_chain.py",),
    "norms": ("network/test_norms.py", "network/test_sampling.py", "network/test_norm_run.py"),
    "pairs": ("network/test_certificate.py", "network/test_pairs.py"),
    "saved norms": ("network/test_saved_norms.py",),
    "contract": ("network/test_exact_refused.py", "network/test_contract.py"),
    "adapters": ("models/test_adapters_losses.py", "models/test_adapters_data.py", "models/test_adapters_problem.py"),
    "discovery": ("models/test_discovery_packed.py", "models/test_discovery_heads.py", "models/test_discovery.py"),
}
"""By kind, the files in `tests` that should notice, the likeliest first."""


@dataclass(frozen=True)
class Mutant:
    """A wrong edit.

    Attributes:
        name: What is wrong.
        kind: Which tests should notice.
        code: The code, as it stands in one file.
        wrong: What takes its place.
    """

    name: str
    kind: str
    code: str
    wrong: str


MUTANTS = (
    # --- operators ---------------------------------------------------------------------------------------------------
    Mutant(
        "the transpose of a sum keeps its letters",
        "operators",
        "return [term.relabel(_TRANSPOSE) for term in self.terms]",
        "return list(self.terms)",
    ),
    Mutant(
        "two merged terms forget a coefficient",
        "operators",
        "tensor = self.coefficient * mine.tensor + other.coefficient * theirs.tensor",
        "tensor = self.coefficient * mine.tensor + theirs.tensor",
    ),
    Mutant(
        "mixed inner products count once in a squared norm",
        "operators",
        "parts += [_inner(one, other).times(2.0) for other in units]",
        "parts += [_inner(one, other) for other in units]",
    ),
    Mutant(
        "pairs of two groups of sequences count once in a large squared norm",
        "large",
        'parts.append(2 * contract((*mine, *copy.sliced(SEQUENCE.upper(), stop, sequences).factors), ""))',
        'parts.append(contract((*mine, *copy.sliced(SEQUENCE.upper(), stop, sequences).factors), ""))',
    ),
    Mutant(
        "a contraction in slices leaves out the last, shorter one",
        "large",
        "for start in range(0, program.slice_size, width):",
        "for start in range(0, program.slice_size - width + 1, width):",
    ),
    Mutant(
        "a closed identity does not count its size",
        "operators",
        "return terms, extras, prod(sizes[x] for x in alone - set(output))",
        "return terms, extras, 1",
    ),
    Mutant(
        "the diagonal by columns starts anew in every chunk of columns",
        "contract",
        "torch.cat([found.diagonal(-start) for start, found in columns_of(op)])",
        "torch.cat([found.diagonal() for start, found in columns_of(op)])",
    ),
    Mutant(
        "a rearranged diagonal keeps the order of the grid",
        "arranged",
        "return diagonal.new_zeros(self.shape[0]).index_copy(0, self._row_order.to(diagonal.device), diagonal)",
        "return diagonal",
    ),
    Mutant(
        "the root of an odd power of two forgets the odd one",
        "operators",
        "odd = even.exponent % 2",
        "odd = 0 * even.exponent",
    ),
    # --- one attention layer -----------------------------------------------------------------------------------------
    Mutant(
        "the value-score block is not divided by the scale",
        "layer",
        "return [Term(term.coefficient / head.scale, (*term.factors, g, vector)) for term in between]",
        "return [Term(term.coefficient, (*term.factors, g, vector)) for term in between]",
    ),
    Mutant(
        "the T-functional part has the wrong sign",
        "layer",
        'return Term(1.0, (Factor("B", "ac", score_pair_matrix(head, gradient))',
        'return Term(-1.0, (Factor("B", "ac", score_pair_matrix(head, gradient))',
    ),
    Mutant(
        "two score parameters share one scale",
        "layer",
        "return 1 / (self.row.scale * self.column.scale)",
        "return 1 / self.row.scale**2",
    ),
    Mutant(
        "the Jacobian of the column's head is not transposed",
        "layer",
        "other = self._jacobian(self.column).tokens(start, stop).transpose()",
        "other = self._jacobian(self.column).tokens(start, stop)",
    ),
    Mutant(
        "the low-rank part of the activation's curvature has the wrong sign",
        "layer",
        "total.add_(rows.left @ rows.right.transpose(-1, -2))",
        "total.sub_(rows.left @ rows.right.transpose(-1, -2))",
    ),
    Mutant(
        "the block of two value factors is half as large",
        "layer",
        "B = torch.tensordot(port.vector, gradient, dims=([0, 1], [0, 1]))",
        "B = torch.tensordot(port.vector, gradient, dims=([0, 1], [0, 1])) / 2",
    ),
    Mutant(
        "a product leaves out what the change of the values does to the scores' gradient",
        "layer",
        "vjp = _plus(vjp, change.spread(g), moved.mT)",
        "vjp = vjp",
    ),
    Mutant(
        "a rotation turns back the wrong way",
        "rotary",
        "return self.cos * vectors - rotate_half(self.sin * vectors)",
        "return self.cos * vectors + rotate_half(self.sin * vectors)",
    ),
    Mutant(
        "the bound of the rank forgets what both factors share",
        "query-key",
        "return 2 * d_k * d_model - d_k**2 if d_k < d_model else d_model**2",
        "return 2 * d_k * d_model if d_k < d_model else d_model**2",
    ),
    # --- attention ---------------------------------------------------------------------------------------------------
    Mutant(
        "softmax's second derivative has the wrong sign off the diagonal",
        "attention",
        "left, right = torch.stack([Ac, A], -1), -torch.stack([A, Ac], -1)",
        "left, right = torch.stack([Ac, A], -1), torch.stack([A, Ac], -1)",
    ),
    Mutant(
        "softmax's products forget its second derivative",
        "attention",
        "weights = self._centred * change if weights is None else weights.addcmul_(self._centred, change)",
        "weights = self._centred * change if weights is None else weights",
    ),
    Mutant(
        "the causal mask lets a token see the next one",
        "attention",
        "visible = visible.tril()",
        "visible = visible.tril(1)",
    ),
    Mutant(
        "minus infinity in a bias hides nothing",
        "attention",
        "return visible & ~hidden, bias.masked_fill(hidden, 0)",
        "return visible, bias.masked_fill(hidden, 0)",
    ),
    Mutant(
        "values are centred under activations whose rows have no fixed sum",
        "attention",
        "if self.activation.fixed_sum:\n            alike =",
        "if self.activation is not None:\n            alike =",
    ),
    Mutant(
        "turned keys are shifted",
        "rotary",
        "return self.activation.shift_invariant and port.key_turn is None",
        "return self.activation.shift_invariant",
    ),
    Mutant(
        "the third moment is not centred",
        "moments",
        "return raw - cross - cross.transpose(-1, -2) + centre",
        "return raw - cross - cross.transpose(-1, -2)",
    ),
    # --- losses ------------------------------------------------------------------------------------------------------
    Mutant(
        "the square loss has half its curvature",
        "losses",
        "constant = F.new_full((), 2 * factor)",
        "constant = F.new_full((), factor)",
    ),
    Mutant(
        "targets that are ignored count",
        "losses",
        "weight = factor * counted.to(F.dtype)",
        "weight = factor * torch.ones_like(counted, dtype=F.dtype)",
    ),
    Mutant(
        "a mean cross-entropy divides by all targets",
        "losses",
        "return targets, counted, 1 / float(counted.sum())",
        "return targets, counted, 1 / float(counted.numel())",
    ),
    Mutant(
        "a coupled curvature keeps all columns at some tokens",
        "losses",
        "return CoupledCurvature(self.matrices[:, kept][:, :, :, kept])",
        "return CoupledCurvature(self.matrices[:, kept][:, :, :, : len(kept)])",
    ),
    # --- matrix-free curvature ---------------------------------------------------------------------------------------
    Mutant(
        "a product holds the last batch only",
        "products",
        "out[..., k + number] += block.take(found[block.parameter])",
        "out[..., k + number] = block.take(found[block.parameter])",
    ),
    Mutant(
        "blocks of one parameter overwrite each other in a vector",
        "products",
        "tangents[block.parameter] = tangents[block.parameter] + whole if block.parameter in tangents else whole",
        "tangents[block.parameter] = whole",
    ),
    Mutant(
        "the functional part forgets the fused end of the network",
        "fused end",
        "functional = {name: part + more[name] for name, part in functional.items()}",
        "functional = dict(functional)",
    ),
    Mutant(
        "gradients are remembered without their columns",
        "products",
        "found = self._grad(self._gradients[columns], rows,",
        "found = self._grad(next(iter(self._gradients.values())), rows,",
    ),
    Mutant(
        "a function that hands out constants for derivatives passes",
        "verification",
        "if one.reaches(columns) and one.reaches(rows):",
        "if one.reaches(columns) and one.reaches(rows) and not rows:",
    ),
    Mutant(
        "a check of some columns serves all of them",
        "verification",
        "asked[0] <= seen[0] and asked[1] <= seen[1] for seen, found in known.items()",
        "asked[0] <= seen[0] for seen, found in known.items()",
    ),
    Mutant(
        "a wrong second derivative is not refused",
        "verification",
        "expect(not known[asked].wrong, known[asked].wrong)",
        "expect(True, known[asked].wrong)",
    ),
    Mutant(
        "every comparison with a difference agrees",
        "verification",
        "    if not found:\n        return DerivativeComparison(Agreement.RIGHT)",
        "    if found is not None:\n        return DerivativeComparison(Agreement.RIGHT)",
    ),
    Mutant(
        "a step without gradients is taken for one of autograd's",
        "steps",
        "if floating and not any(one.requires_grad for one in floating):",
        "if floating and not floating:",
    ),
    Mutant(
        "any step is known",
        "steps",
        "if _kind(name) not in STEPS_OF_PYTORCH:",
        "if not _kind(name):",
    ),
    Mutant(
        "Python may run in the backward pass",
        "steps",
        'self._inside = event == "c_call"',
        'self._inside = event == "c_exception"',
    ),
    Mutant(
        "outputs are not compared with those of the model",
        "adapters",
        "if not torch.equal(outputs, known.outputs):",
        "if outputs is None:",
    ),
    # --- spectra -----------------------------------------------------------------------------------------------------
    Mutant(
        "all blocks share their probes",
        "probes",
        '"rademacher", dtype, device, zlib.crc32(name.encode()))',
        '"rademacher", dtype, device, zlib.crc32(b""))',
    ),
    Mutant(
        "every probe is the first one",
        "probes",
        "spawn_key=(self.stream, k)",
        "spawn_key=(self.stream, 0 * k)",
    ),
    Mutant(
        "the interval of a norm is not stretched for skewed samples",
        "intervals",
        "return max(low, 1 - t * relative), min(high, 1 + t * stretch * relative)",
        "return max(low, 1 - t * relative), min(high, 1 + t * relative)",
    ),
    Mutant(
        "Student's interval is one-sided",
        "intervals",
        "return float(stdtrit(dof, 0.5 + level / 2))",
        "return float(stdtrit(dof, level))",
    ),
    Mutant(
        "the standard error of a norm is half of what it is",
        "intervals",
        "stderr = float(squares.std()) / math.sqrt(count) / (2 * value)",
        "stderr = float(squares.std()) / math.sqrt(count) / (4 * value)",
    ),
    Mutant(
        "the standard error of a mean is divided by the number of samples",
        "intervals",
        "return mean, samples.std(0) / math.sqrt(len(samples))",
        "return mean, samples.std(0) / len(samples)",
    ),
    Mutant(
        "the upper bound of a distribution is its value",
        "spectra",
        "below, up_to = torch.where(known, low, below), torch.where(known, high, up_to)",
        "below, up_to = torch.where(known, low, below), torch.where(known, low, up_to)",
    ),
    Mutant(
        "an unsymmetric operator passes for a symmetric one",
        "spectra",
        "abs(difference) <= torch.finfo(op.dtype).eps ** 0.5 * scale",
        "abs(difference) <= abs(scale) * 1e9",
    ),
    Mutant(
        "blocks are compared with themselves in the mean of ratios",
        "spectra",
        "upper = torch.ones_like(ratios).triu(1).bool()",
        "upper = torch.ones_like(ratios).triu(0).bool()",
    ),
    # --- network -----------------------------------------------------------------------------------------------------
    Mutant(
        "the Hessian of the last attention forgets the curvature of the network behind it",
        "last attention",
        'curvature = self.head if part == "functional" else token_matrices(self.ggn) + self.head',
        'curvature = self.head if part == "functional" else token_matrices(self.ggn)',
    ),
    Mutant(
        "a key bias under rotary positions counts as flat",
        "pairs",
        "return not (turned or sunk) and all(as_activation(head.activation).shift_invariant for head in heads)",
        "return all(as_activation(head.activation).shift_invariant for head in heads)",
    ),
    Mutant(
        "a key bias counts as flat under every activation",
        "pairs",
        "return not (turned or sunk) and all(as_activation(head.activation).shift_invariant for head in heads)",
        "return not (turned or sunk)",
    ),
    Mutant(
        "pairs of sequences count once in the norms of several parts",
        "last attention",
        "    weights[group:] *= 2\n",
        "",
    ),
    Mutant(
        "parts that cancel are trusted",
        "last attention",
        "    if full < _CANCELLED * parts:\n",
        "    if full < 0 * parts:\n",
    ),
    Mutant(
        "the readout's norm leaves out the square of the mixed term",
        "readout",
        "total = sums[0] - sums[1] - sums[2] + sums[3]",
        "total = sums[0] - sums[1] - sums[2]",
    ),
    Mutant(
        "a readout's norm that cancels is trusted",
        "readout",
        "return None if total <= _CANCELLED * sums[0] else total**0.5",
        "return None if total <= 0 else total**0.5",
    ),
    Mutant(
        "strips count their mirror images twice over",
        "linear maps",
        "strip[..., strip.shape[1] :] *= math.sqrt(2)",
        "strip[..., strip.shape[1] :] *= 2",
    ),
    Mutant(
        "pairs of positions count once in the norm of a linear map",
        "linear maps",
        "        products[:, last - first :] *= 2\n",
        "",
    ),
    Mutant(
        "positions are taken as uncoupled without a look",
        "linear maps",
        "if hooked.couples_no_groups(*sides[0], *sides[1]) and (",
        "if rows and (",
    ),
    Mutant(
        "the Hessian between two maps forgets that the second one's inputs move",
        "linear maps",
        'if part != "ggn" and found.moved is not None:',
        'if part == "functional" and found.moved is not None:',
    ),
    Mutant(
        "groups of positions are remembered without their batch",
        "linear maps",
        "key = (number, *sides, moving, tuple(rows), tuple(columns))",
        "key = (*sides, moving, tuple(rows), tuple(columns))",
    ),
    Mutant(
        "a refusal for its price is remembered for every price",
        "linear maps",
        "if isinstance(known, LinearMapPlan) or not known.at_this_price:",
        "if known is not None:",
    ),
    Mutant(
        "the functional curvature of a gated MLP is not symmetrised",
        "backpropagation",
        "second_derivative = _sum(second_derivative, found if p == q else found + found.mT)",
        "second_derivative = _sum(second_derivative, found)",
    ),
    Mutant(
        "cross terms of one map are not symmetrised",
        "backpropagation",
        "        self._entries[id(row), id(row)].add(parts, transposed=True)\n",
        "",
    ),
    Mutant(
        "groups of sites that are split forget what they had to do with each other",
        "backpropagation",
        "                    self._entries[id(new), id(group)] = _Entry(entry.parts, False)\n",
        "                    pass\n",
    ),
    Mutant(
        "more is added to a matrix that another group holds too",
        "backpropagation",
        "                entry.owned = False\n",
        "                pass\n",
    ),
    Mutant(
        "attention forgets that queries and keys meet in a product",
        "backpropagation",
        "            crossed.diagonal(dim1=2, dim2=4).add_(slope[..., None])\n",
        "            pass\n",
    ),
    Mutant(
        "values are averaged by the transpose of the weights",
        "backpropagation",
        "        values = self.weights.mT @ self._at_values(cotangents).flatten(2)\n",
        "        values = self.weights @ self._at_values(cotangents).flatten(2)\n",
    ),
    Mutant(
        "the functional part of a chain holds the first group of sequences only",
        "chain",
        "                        total[1].add_(more[1])\n",
        "",
    ),
    Mutant(
        "a chain sees only the positions with a loss",
        "chain",
        "seen = seen | layer[:, seen].any(0).any(0)",
        "seen = seen | layer[:, seen].all(0).all(0)",
    ),
    Mutant(
        "a sampled norm holds the last batch only",
        "norms",
        "total[part] += found",
        "total[part] = found",
    ),
    Mutant(
        "the sampled Hessian is its Gauss-Newton part",
        "norms",
        'found["full"] = found["ggn"] + found["functional"]\n        return block.name',
        'found["full"] = found["ggn"]\n        return block.name',
    ),
    Mutant(
        "pairs of blocks are sampled from one side",
        "pairs",
        "lengths = one.lengths if one is other else torch.cat([one.lengths, other.lengths])",
        "lengths = one.lengths",
    ),
    Mutant(
        "norms of pairs from a few probes are called exact",
        "pairs",
        'exact = vectors.distribution == "basis"',
        'exact = vectors.distribution != ""',
    ),
    Mutant(
        "the file of norms does not know its weights",
        "saved norms",
        '_add(digests, f"parameter {name}", tensor)',
        '_add(digests, f"parameter {name}", None)',
    ),
    Mutant(
        "the file of norms does not know its data",
        "saved norms",
        '_add(digests, "data", batch)',
        '_add(digests, "data", None)',
    ),
    Mutant(
        "a closed form that was asked for and refused becomes products",
        "contract",
        "raise InputError(f\"method: got 'exact', but {choices}; expected 'auto' or 'hvp'.\")",
        "return hvps",
    ),
    # --- models ------------------------------------------------------------------------------------------------------
    Mutant(
        "a causal model predicts its own token",
        "adapters",
        "out, targets = out[:, :-1], targets[:, 1:]",
        "out, targets = out[:, :-1], targets[:, :-1]",
    ),
    Mutant(
        "batches of a user's loss weigh the same whatever their size",
        "adapters",
        '(batch_size(batch) / sequences if reduction == "mean" else 1.0)',
        '(1 / len(data) if reduction == "mean" else 1.0)',
    ),
    Mutant(
        "padding has a loss",
        "adapters",
        "return tokens if seen is None else tokens.masked_fill(seen == 0, ignore_index)",
        "return tokens",
    ),
    Mutant(
        "a model's own loss may differ from the one that stands for it",
        "adapters",
        "abs(own - here) <= max(1e-3, 16 * torch.finfo(made.dtype).eps)",
        "abs(own - here) <= max(1e3, 16 * torch.finfo(made.dtype).eps)",
    ),
    Mutant(
        "grouped queries have as many stretches as query heads",
        "discovery",
        "groups = packing.key_value or packing.query\n",
        "groups = packing.query\n",
    ),
    Mutant(
        "every head of a block is the one before it",
        "discovery",
        "starts = {head_name(block.name, head): head * width for head in range(count)}",
        "starts = {head_name(block.name, head): max(head - 1, 0) * width for head in range(count)}",
    ),
)
