// Decides requests by policies, as IAM does. In: {policies: {name: document}, requests: [{policy, action, resource, keys}]};
// `keys` null: the request names none. Out: "Allowed", "ImplicitlyDenied", "ExplicitlyDenied" or an error, for each.
import { runSimulation } from '@cloud-copilot/iam-simulate'
import { readFileSync } from 'node:fs'

const ACCOUNT = '123456789012'
const everything = { Version: '2012-10-17', Statement: [{ Effect: 'Allow', Action: '*', Resource: '*' }] }
const { policies, requests } = JSON.parse(readFileSync(0, 'utf8'))

async function decided({ policy, action, resource, keys }) {
  const answer = await runSimulation(
    {
      request: {
        principal: `arn:aws:iam::${ACCOUNT}:role/${policy}`,
        action,
        resource: { resource, accountId: ACCOUNT },
        contextVariables: keys === null ? {} : { 'dynamodb:LeadingKeys': keys },
      },
      identityPolicies: [{ name: policy, policy: policies[policy] }],
      serviceControlPolicies: [{ orgIdentifier: 'root', policies: [{ name: 'all', policy: everything }] }],
      resourceControlPolicies: [],
    },
    {},
  )
  return answer.resultType === 'error' ? `error: ${answer.errors.message}` : answer.overallResult
}

const decisions = []
for (const request of requests) decisions.push(await decided(request))
console.log(JSON.stringify(decisions))
